#pragma once
// Exchange: sums, gathers and broadcasts between ranks, made of point-to-point transfers on a
// separate thread, so that they go on while the program computes.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "core/tensor.h"
#include "dist/engine.h"
#include "dist/levels.h"
#include "dist/peers.h"

namespace mixtape::dist {

// The place in the program where ranks exchange something. If ranks meet at different places, an
// Error says so at once, instead of a hang.
struct Place {
  enum class Kind : int64_t { Bucket, Step, Sum, Gather, Broadcast, Barrier, End };
  Kind kind;
  // A bucket's step and number; for a sum, gather or broadcast the dtype and, if known, the count
  // of numbers.
  int64_t step = 0, number = 0;
  std::string contents = {};  // the bucket's parameters, for the message after a timeout
  std::string to_string() const;
};

class Exchange : NoCopy {
 public:
  // Waits at most `timeout` seconds for other ranks.
  Exchange(std::unique_ptr<Engine> engine, double timeout);
  // To be destroyed on all ranks together; otherwise call abandon() first.
  ~Exchange();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Engine& engine() const { return on_device_ ? *on_device_ : *engine_; }
  // Adds an engine for a device's memory, which otherwise travels through the host's. `make` gets
  // the host's engine and runs as a job.
  void add(const std::function<std::unique_ptr<Engine>(Engine& host)>& make);
  // If each machine has the same 2, 4, 8 ... consecutive ranks, sums are formed within machines
  // first: the result is the same, and less travels between machines. `machines` names them by
  // rank.
  void add_levels(const std::vector<std::string>& machines);
  // The device on which a device's tensors are exchanged: the device itself or the CPU. If GPUs are
  // connected, throws Error for a device that is not this rank's.
  Device exchanges(Device device) const;

  // Work for the thread, which runs jobs in order of submission, the same on all ranks. If one
  // fails, all later ones fail. submit() throws Error in a forked process.
  class Job {
   public:
    void wait();  // rethrows what the work threw

   private:
    friend class Exchange;
    std::mutex mutex_;
    std::condition_variable ended_;
    std::function<void()> work_;
    bool is_ended_ = false;
    std::exception_ptr error_;
  };
  std::shared_ptr<Job> submit(std::function<void()> work);
  void run(std::function<void()> work) { submit(std::move(work))->wait(); }

  // The following functions run within jobs, which end when their transfers have. Tensors must be
  // contiguous and on a device that exchanges() returns.

  // Checks that all ranks are at this place with the same number of bytes to exchange. Returns the
  // words of each rank, at most `most_words` numbers.
  static constexpr size_t most_words = 2048;
  std::vector<std::vector<double>> meet(const Place& place, std::span<const double> words = {},
                                        size_t bytes = 0);
  // The sums of words over ranks or chunks, in the order of sum_tree(); some may have fewer.
  static std::vector<double> total(const std::vector<std::vector<double>>& words);
  // result = by * the sum of `part` over ranks, in the order of sum_tree(). It takes two rounds:
  // each rank adds up one piece, then sends it to all. Sizes are multiples of alignment(); result
  // may be part. Returns the words of all ranks, like meet().
  std::vector<std::vector<double>> sum(const Place& place, const Tensor& part, double by,
                                       const Tensor& result, std::span<const double> words = {});
  // Only the first round: piece = by * the sum over ranks of this rank's piece of `part`.
  std::vector<std::vector<double>> sum_piece(const Place& place, const Tensor& part, const Cut& cut,
                                             double by, const Tensor& piece,
                                             std::span<const double> words = {});
  // Sends rank r's piece of each tensor to all ranks, for every r. Tensors are 1-dimensional and on
  // one device.
  using Divided = std::vector<std::pair<Tensor, Cut>>;
  void share_pieces(const Place& place, const Divided& all);
  // Every rank's x, stacked [size, ...].
  Tensor gather(const Place& place, const Tensor& x);
  // Overwrites x by rank `from`'s. Its size is a multiple of alignment().
  void broadcast(const Place& place, const Tensor& x, int from);
  // Buffers are padded to a multiple of so many elements.
  int64_t alignment() const { return int64_t(size_) * 64; }
  Cut equal_pieces(int64_t elements) const;  // `elements` is a multiple of size()

  // Throws Error at once if one of these ends while this rank waits. Call it within a job.
  void watch(std::unique_ptr<Peers> peers) { peers_ = std::move(peers); }

  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t messages_sent() const { return messages_sent_; }
  std::string error();  // why all jobs fail, or ""

  // Makes the thread call `then` if another rank ends while this one is between two exchanges.
  void at_loss(std::function<void(const std::string& text)> then);
  // Gives up unfinished work, since this rank leaves before the others. If the process still runs
  // some seconds later, the thread calls `then`.
  void abandon(std::function<void()> then = {});
  // Ends all ranks, once the thread no longer uses the engine, which takes calls from one thread at
  // a time. Returns if the engine returns, or if the thread keeps using it.
  void end_all() noexcept;
  // True on the thread, within a job. (An engine may call exit() there if another rank has ended
  // all.)
  bool is_in_job() const;
  // False in a forked process, which lacks the thread.
  bool is_of_this_process() const;

 private:
  void work();
  // Waits until `ready`. Returns false if the time runs out first.
  bool idle(std::unique_lock<std::mutex>& lock, double seconds, const std::function<bool()>& ready);
  std::string loss() const;
  void run_next(std::unique_lock<std::mutex>& lock);
  // Sends and receives, after work that this thread has queued on the device and before work that
  // it queues later. `memory` is kept if transfers fail, since they may still use it.
  void transfer(const Place& place, Device device, std::span<const Transfer> sends,
                std::span<const Transfer> receives, std::vector<Tensor> memory);
  void settle();  // waits for a job's transfers
  using Ranges = std::function<std::vector<Range>(int rank)>;
  // y = by * the sum of this rank's ranges of x over a group, in the order of sum_tree().
  void add_up(const Place& place, const Tensor& x, const Group& group, const Ranges& of, double by,
              const Tensor& y);
  // Sends each rank's ranges to all of a group.
  void pass_on(const Place& place, const Divided& all, const Group& group,
               std::vector<Range> (Levels::*of)(int rank) const);
  void wait(Request& request, bool (Request::*until)(), const Place& place) const;
  void check_places(const Place& place, const char* greetings) const;

  std::vector<Tensor> late_;  // memory of failed transfers, which engines may write to at their end
  const std::unique_ptr<Engine> engine_;
  std::unique_ptr<Engine> on_device_;
  const int rank_, size_;
  int ranks_of_node_;  // all ranks if there are no levels
  const double timeout_;
  const int64_t process_;
  std::mutex mutex_;
  std::condition_variable given_, let_go_;
  std::deque<std::shared_ptr<Job>> jobs_;
  std::exception_ptr error_;  // of the first job that failed
  bool ending_ = false, has_let_go_ = false;
  std::atomic<bool> abandoned_ = false, ends_all_ = false;
  std::function<void()> then_;
  std::function<void(const std::string&)> at_loss_;
  std::atomic<uint64_t> bytes_sent_ = 0, messages_sent_ = 0;
  std::unique_ptr<Peers> peers_;
  struct UnderWay {
    Place place;
    std::vector<Tensor> memory;
    std::unique_ptr<Request> request;
  };
  std::vector<UnderWay> under_way_;  // transfers of the job, kept for good if one failed
  std::thread thread_;
};

}  // namespace mixtape::dist
