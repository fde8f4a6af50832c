#pragma once
// Ranks that are threads of one process: an engine for tests, which can delay transfers, let them
// arrive in any order, and cut ranks off.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/check.h"
#include "dist/world.h"

namespace mixtape::dist {

struct ThreadsOptions {
  double delay = 0;             // seconds that each transfer takes
  double seconds_per_byte = 0;  // and what each byte adds
  bool shuffles = false;        // transfers of different pairs arrive in any order
  int stuck = -1;               // a rank whose bytes never leave, from its transfer `stuck_from` on
  int64_t stuck_from = 0;
  int of_machine = 0;  // ranks of each machine that they pretend to be on; 0: all are on one
  std::atomic<uint64_t>* between = {};  // counts the bytes between machines
};

// Where messages between the ranks of a run lie.
class Board {
 public:
  Board(int size, const ThreadsOptions& options)
      : size(size), options(options), mail(size_t(size * size)) {}

  struct Message {
    const char* data;
    size_t bytes;
    std::chrono::steady_clock::time_point arrives;
    std::shared_ptr<bool> taken;
  };
  const int size;
  const ThreadsOptions options;
  std::mutex mutex;
  std::vector<std::deque<Message>> mail;  // of sender * size + receiver
  int64_t started = 0;                    // transfers of the stuck rank
  bool aborted = false;
};

class ThreadsEngine final : public Engine {
 public:
  ThreadsEngine(std::shared_ptr<Board> board, int rank) : board_(std::move(board)), rank_(rank) {}

  std::string name() const override { return "threads"; }
  int rank() const override { return rank_; }
  int size() const override { return board_->size; }
  int local_rank() const override { return rank_; }
  std::string machine() const override { return std::to_string(machine_of(rank_)); }
  std::unique_ptr<Request> start(std::span<const Transfer> sends,
                                 std::span<const Transfer> receives) override {
    auto request = std::make_unique<OnBoard>(*this);
    const std::lock_guard lock(board_->mutex);
    for (const Transfer& t : sends) {
      const ThreadsOptions& o = board_->options;
      double seconds = o.delay + o.seconds_per_byte * double(t.bytes);
      if (o.shuffles) seconds *= double(++random_ * 2654435761u % 1000) / 250;
      if (o.between && machine_of(rank_) != machine_of(t.rank)) *o.between += t.bytes;
      auto taken = std::make_shared<bool>(false);
      request->sends.push_back({t.rank, taken});
      if (rank_ == o.stuck && board_->started++ >= o.stuck_from) continue;
      const auto arrives = std::chrono::steady_clock::now() +
                           std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                               std::chrono::duration<double>(seconds));
      box(rank_, t.rank).push_back({static_cast<const char*>(t.data), t.bytes, arrives, taken});
    }
    for (const Transfer& t : receives) request->receives.push_back({t, false});
    return request;
  }
  void abort(int) noexcept override {
    const std::lock_guard lock(board_->mutex);
    board_->aborted = true;
  }

 private:
  struct OnBoard final : Request {
    explicit OnBoard(ThreadsEngine& engine) : engine(engine) {}
    bool done() override {
      const std::lock_guard lock(engine.board_->mutex);
      check(!engine.board_->aborted, "another rank has ended all");
      const auto now = std::chrono::steady_clock::now();
      for (auto& [transfer, is_done] : receives) {
        auto& box = engine.box(transfer.rank, engine.rank_);
        if (is_done || box.empty() || box.front().arrives > now) continue;
        const Board::Message& m = box.front();
        std::copy_n(m.data, std::min(m.bytes, transfer.bytes), static_cast<char*>(transfer.data));
        *m.taken = is_done = true;
        box.pop_front();
      }
      return std::ranges::all_of(receives, [](const auto& r) { return r.second; }) &&
             std::ranges::all_of(sends, [](const auto& s) { return *s.second; });
    }
    std::vector<int> missing() const override {
      std::vector<int> ranks;
      for (const auto& [transfer, is_done] : receives)
        if (!is_done) ranks.push_back(transfer.rank);
      for (const auto& [rank, taken] : sends)
        if (!*taken) ranks.push_back(rank);
      return ranks;
    }
    ThreadsEngine& engine;
    std::vector<std::pair<int, std::shared_ptr<bool>>> sends;
    std::vector<std::pair<Transfer, bool>> receives;
  };
  int machine_of(int rank) const {
    const int of_machine = board_->options.of_machine;
    return of_machine ? rank / of_machine : 0;
  }
  std::deque<Board::Message>& box(int from, int to) {
    return board_->mail[size_t(from * board_->size + to)];
  }

  const std::shared_ptr<Board> board_;
  const int rank_;
  uint32_t random_ = 1;
};

// Runs body(world) on a thread per rank, all on this thread's device. Returns what each threw, or
// "".
inline std::vector<std::string> run_ranks(int size, const std::function<void(const World&)>& body,
                                          const ThreadsOptions& options = {}, double timeout = 60) {
  const auto board = std::make_shared<Board>(size, options);
  const Device device = DefaultDevice::current();
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      try {
        const World world(std::make_unique<ThreadsEngine>(board, r),
                          {.timeout = timeout, .device = device});
        const DefaultDevice here(device);
        body(world);
      } catch (const std::exception& e) {
        errors[size_t(r)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return errors;
}

}  // namespace mixtape::dist
