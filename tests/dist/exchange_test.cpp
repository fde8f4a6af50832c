// Exchange and Peers: what travels, and what stays safe where a rank or the engine fails.

#include "dist/exchange.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/threads_engine.h"

namespace mixtape::dist {
namespace exchange_test {

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Exchange, SendsTheBytesOfARing) {
  for (const int size : {2, 4}) {
    const auto errors = run_ranks(size, [size](const World& world) {
      Exchange& exchange = *world.exchange();
      const int64_t n = 10 * exchange.alignment();
      const Tensor x({n}, f32, Device::cpu());
      std::memset(x.raw(), 0, size_t(n) * 4);
      const uint64_t before = exchange.bytes_sent();
      exchange.run(
          [&] { exchange.sum({Place::Kind::Sum}, x, 1, x, std::vector<double>{1, 2, 3}); });
      EXPECT_EQ(exchange.bytes_sent() - before,
                uint64_t(size - 1) * (40 + 3 * 8) +
                    2 * uint64_t(size - 1) * uint64_t(n) * 4 / uint64_t(size));
    });
    EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
  }
}

TEST(Exchange, OneFailureFailsAllThatFollows) {
  const auto errors = run_ranks(2, [](const World& world) {
    Exchange& exchange = *world.exchange();
    EXPECT_EQ(error_of([&] { exchange.run([] { throw Error("no"); }); }), "no");
    EXPECT_EQ(exchange.error(), "no");
    EXPECT_EQ(error_of([&] { world.barrier(); }), "no");
    exchange.end_all();
    EXPECT_NE(error_of([&] { world.barrier(); }).find("has left its World"), std::string::npos);
    throw Error("leaves");
  });
  EXPECT_EQ(errors, (std::vector<std::string>{"leaves", "leaves"}));
}

// An engine whose transfers never end. Bytes still come, until it is destroyed.
class LateEngine final : public Engine {
 public:
  struct State {
    std::atomic<bool> in_call = false, was_aborted = false, aborted_in_call = false;
    double seconds_of_a_call = 0;
    std::vector<Transfer> receives;
  };
  explicit LateEngine(State& state) : state_(state) {}
  ~LateEngine() override {
    for (const Transfer& t : state_.receives) std::memset(t.data, 1, t.bytes);
  }
  std::string name() const override { return "late"; }
  int rank() const override { return 0; }
  int size() const override { return 2; }
  int local_rank() const override { return 0; }
  std::unique_ptr<Request> start(std::span<const Transfer>,
                                 std::span<const Transfer> receives) override {
    state_.receives.assign(receives.begin(), receives.end());
    return std::make_unique<Never>(state_);
  }
  void abort(int) noexcept override {
    state_.aborted_in_call = bool(state_.in_call);
    state_.was_aborted = true;
  }

 private:
  struct Never final : Request {
    explicit Never(State& state) : state(state) {}
    bool done() override {
      state.in_call = true;
      std::this_thread::sleep_for(std::chrono::duration<double>(state.seconds_of_a_call));
      state.in_call = false;
      return false;
    }
    std::vector<int> missing() const override { return {1}; }
    State& state;
  };
  State& state_;
};

TEST(Exchange, MemoryOfFailedTransfersStays) {
  LateEngine::State state;
  {
    Exchange exchange(std::make_unique<LateEngine>(state), 0.01);
    EXPECT_NE(error_of([&] {
                exchange.run([&] { exchange.meet({Place::Kind::Barrier}); });
              }).find("rank 0 of 2 waited 0.01"),
              std::string::npos);
    exchange.end_all();
    // Freed memory would be used again.
    std::vector<Tensor> others;
    const auto& [rank, late, bytes] = state.receives.at(0);
    for (int i = 0; i < 100; ++i) {
      const auto& other = others.emplace_back(Shape{2 * int64_t(bytes)}, u8, Device::cpu());
      EXPECT_TRUE(static_cast<char*>(other.raw()) + 2 * bytes <= late || late < other.raw());
    }
  }
  EXPECT_TRUE(state.was_aborted);
}

TEST(Exchange, EndsAllOnlyOnceItsThreadHasLetGoOfTheEngine) {
  for (const double seconds : {0.001, 0.3, 1.6}) {
    LateEngine::State state;
    state.seconds_of_a_call = seconds;
    Exchange exchange(std::make_unique<LateEngine>(state), 60);
    const auto job = exchange.submit([&] { exchange.meet({Place::Kind::Barrier}); });
    while (!state.in_call) std::this_thread::yield();
    exchange.end_all();
    EXPECT_FALSE(state.aborted_in_call);
    EXPECT_EQ(state.was_aborted, seconds < 1);  // else it returns, and the process must end itself
    EXPECT_NE(error_of([&] { job->wait(); }), "");
  }
}

TEST(Peers, NoticeAProcessThatEnds) {
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  const std::string own = Peers::introduction();
  const std::string other = own.substr(0, own.rfind(' ') + 1) + std::to_string(child);
  const Peers peers({own, other, "another machine 1"}, 0);
  EXPECT_TRUE(peers.ended().empty());
  kill(child, SIGKILL);
  for (int i = 0; i < 1000 && peers.ended().empty(); ++i) usleep(1000);
  EXPECT_EQ(peers.ended(), std::vector<int>{1});
  waitpid(child, nullptr, 0);
  EXPECT_EQ(peers.ended(), std::vector<int>{1});
}

}  // namespace exchange_test
}  // namespace mixtape::dist
