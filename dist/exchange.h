#pragma once
// Exchange: sums, gathers and broadcasts between ranks, made of point-to-point transfers on a
// thread of their own, so that they go on while the program computes.

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

// Where a rank is. Ranks that meet at different places have run apart: an Error at once, no hang.
struct Place {
  enum class Kind : int64_t { Bucket, Step, Sum, Gather, Broadcast, Barrier, End };
  Kind kind;
  // A bucket's number; of a sum, a gather or a broadcast the dtype, and how many numbers, if known.
  int64_t step = 0, number = 0;
  std::string contents = {};  // the bucket's parameters, for the message of a time limit
  std::string to_string() const;
};

class Exchange : NoCopy {
 public:
  // `timeout` in seconds: how long to wait for other ranks.
  Exchange(std::unique_ptr<Engine> engine, double timeout);
  // On all ranks at once; else abandon() comes first.
  ~Exchange();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Engine& engine() const { return on_device_ ? *on_device_ : *engine_; }
  // Adds an engine for the memory of a device, which else travels through that of the host. `make`
  // gets the host's engine, and runs as a job.
  void add(const std::function<std::unique_ptr<Engine>(Engine& host)>& make);
  // Adds up within machines first, named by rank, where each has 2, 4, 8 ... ranks, one after the
  // other: the same sums, and less travels between machines.
  void add_levels(const std::vector<std::string>& machines);
  // The device on which a device's tensors are exchanged: itself, or the CPU. Throws Error for one
  // that is not this rank's, if GPUs are connected.
  Device exchanges(Device device) const;

  // Work for the thread, which runs it in order of submission, the same order on all ranks. The
  // first that fails fails all later ones. submit() throws Error in a process that was forked.
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

  // The following run within jobs, which end when the transfers have. Tensors are contiguous and on
  // a device that exchanges().

  // All ranks are at this place, with as many bytes to exchange. Returns what each says there: at
  // most `most_words` numbers each.
  static constexpr size_t most_words = 2048;
  std::vector<std::vector<double>> meet(const Place& place, std::span<const double> words = {},
                                        size_t bytes = 0);
  // The sums over ranks of words, in the order of sum_tree(); some may have fewer.
  static std::vector<double> total(const std::vector<std::vector<double>>& words);
  // result = by * the sum over ranks of `part`, in the order of sum_tree(), in two rounds: each
  // rank adds up one piece and sends it to all. Sizes are multiples of alignment(); result may be
  // part. Returns the words of all ranks, as meet() does.
  std::vector<std::vector<double>> sum(const Place& place, const Tensor& part, double by,
                                       const Tensor& result, std::span<const double> words = {});
  // The first round alone: piece = by * the sum over ranks of this rank's piece of `part`.
  std::vector<std::vector<double>> sum_piece(const Place& place, const Tensor& part, const Cut& cut,
                                             double by, const Tensor& piece,
                                             std::span<const double> words = {});
  // Rank r's piece of each of these, 1-dimensional and of one device, becomes that of all ranks.
  using Divided = std::vector<std::pair<Tensor, Cut>>;
  void share_pieces(const Place& place, const Divided& all);
  // Every rank's x, stacked [size, ...].
  Tensor gather(const Place& place, const Tensor& x);
  // x becomes rank `from`'s. Its size is a multiple of alignment().
  void broadcast(const Place& place, const Tensor& x, int from);
  // The number of elements that buffers are padded to.
  int64_t alignment() const { return int64_t(size_) * 64; }
  Cut equal_pieces(int64_t elements) const;  // of a multiple of size()

  // An Error comes at once where one of these ends while this rank waits. Within a job.
  void watch(std::unique_ptr<Peers> peers) { peers_ = std::move(peers); }

  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t messages_sent() const { return messages_sent_; }
  std::string error();  // why all jobs fail, or ""

  // Where another rank has ended while this one is between two exchanges, the thread calls `then`.
  void at_loss(std::function<void(const std::string& text)> then);
  // Gives up what has not ended: this rank leaves before the others. With `then`, the thread calls
  // it some seconds later, if the process goes on until then.
  void abandon(std::function<void()> then = {});
  // Ends all ranks, once the thread has let go of the engine, which takes calls from one at a
  // time. Returns if the engine returns, or if the thread does not let go.
  void end_all() noexcept;
  // True on the thread, within a job: an engine may call exit() there, where another rank has
  // ended all.
  bool is_in_job() const;
  // Not in one that was forked: the thread is not there.
  bool is_of_this_process() const;

 private:
  void work();
  // Waits until `ready`. Returns false if the time is over first.
  bool idle(std::unique_lock<std::mutex>& lock, double seconds, const std::function<bool()>& ready);
  std::string loss() const;
  void run_next(std::unique_lock<std::mutex>& lock);
  // Sends and receives, after what this thread has queued on the device, and before what it queues
  // later. `memory` is what they use, which must stay if they fail.
  void transfer(const Place& place, Device device, std::span<const Transfer> sends,
                std::span<const Transfer> receives, std::vector<Tensor> memory);
  void settle();  // waits for the transfers of a job
  using Ranges = std::function<std::vector<Range>(int rank)>;
  // y = by * the sum over a group of this rank's ranges of x, in the order of sum_tree().
  void add_up(const Place& place, const Tensor& x, const Group& group, const Ranges& of, double by,
              const Tensor& y);
  // Each one's ranges become those of all of a group.
  void pass_on(const Place& place, const Divided& all, const Group& group,
               std::vector<Range> (Levels::*of)(int rank) const);
  void wait(Request& request, bool (Request::*until)(), const Place& place) const;
  void check_places(const Place& place, const char* greetings) const;

  const std::unique_ptr<Engine> engine_;
  std::unique_ptr<Engine> on_device_;
  const int rank_, size_;
  int ranks_of_node_;  // all, if there are no levels
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
  std::vector<UnderWay> under_way_;  // transfers of the job; if one failed, perhaps for ever
  std::thread thread_;
};

}  // namespace mixtape::dist
