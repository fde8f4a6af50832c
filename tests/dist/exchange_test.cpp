// Exchange and Peers: what travels, and what stays safe where a rank or the engine fails.

#include "dist/exchange.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "autograd/ops.h"
#include "core/random.h"
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

// The values of n sums of a buffer over ranks: whole, and in pieces of uneven sizes.
std::vector<double> sums_on(int size, int of_machine, DType travels, DType result, int n,
                            uint64_t& between) {
  std::vector<double> values;
  std::atomic<uint64_t> bytes = 0;
  const auto errors = run_ranks(
      size,
      [&](const World& world) {
        const DefaultDevice host(Device::cpu());  // whose memory the engine takes
        Exchange& exchange = *world.exchange();
        const int64_t elements = 2 * exchange.alignment();
        Tensor part;
        {
          const Seed seed(uint64_t(world.rank() + 1));
          part = cast(randn({elements}) * pow(from({10.0}, {1}), randn({elements})), travels);
        }
        const Tensor whole = zeros({elements}, result), pieces = zeros({elements}, result);
        Cut cut{0};
        for (int r = 1; r < size; ++r) cut.push_back(cut.back() + (r == 2 ? 0 : 3 + r));
        cut.push_back(elements);
        const Tensor piece = narrow(pieces, 0, cut[size_t(world.rank())],
                                    cut[size_t(world.rank()) + 1] - cut[size_t(world.rank())]);
        for (int i = 0; i < n; ++i)
          exchange.run([&] {
            exchange.sum({Place::Kind::Sum}, part, 0.3, whole);
            exchange.sum_piece({Place::Kind::Sum}, part, cut, 0.3, piece);
            exchange.share_pieces({Place::Kind::Sum}, {{pieces, cut}});
          });
        if (n > 0) {
          EXPECT_EQ(to_vector(whole), to_vector(pieces));
        }
        const std::vector<Tensor> all = world.gather(whole);
        for (const Tensor& t : all) EXPECT_EQ(to_vector(t), to_vector(whole));
        if (world.is_first()) values = to_vector(whole);
      },
      {.of_machine = of_machine, .between = &bytes});
  EXPECT_EQ(errors, std::vector<std::string>(errors.size()));
  between = bytes;
  return values;
}

TEST(Exchange, LevelsHaveTheSameBitsAndSendLessBetweenMachines) {
  for (const auto& [travels, result] : {std::pair{f32, f32}, {bf16, f32}, {f16, f16}, {f64, f64}}) {
    uint64_t ignored;
    const auto flat = sums_on(8, 0, travels, result, 1, ignored);
    for (const int of_machine : {1, 2, 4, 8, 3})  // 3: no levels
      EXPECT_EQ(sums_on(8, of_machine, travels, result, 1, ignored), flat) << of_machine;
  }
  // In each round each of two machines, not each rank, sends its part of the buffer.
  const auto between = [](int of_machine, int ranks) {
    uint64_t without, with;
    sums_on(ranks, of_machine, f32, f32, 0, without);
    sums_on(ranks, of_machine, f32, f32, 1, with);
    return with - without;
  };
  const uint64_t bytes = 2 * 8 * 64 * 4;  // of the buffer
  const uint64_t greetings = 2 * 8 * 4 * 40, rounds = 2 * 2;
  EXPECT_EQ(between(4, 8), greetings + rounds * bytes);
  EXPECT_EQ(between(8, 8), 0);
  EXPECT_EQ(between(3, 6), 2 * 6 * 3 * 40 + rounds * 3 * (2 * 6 * 64 * 4));  // no levels
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
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const Peers own;
    const std::string text = own.introduction();
    if (write(ends[1], text.data(), text.size()) < 0) _exit(1);
    for (;;) pause();
  }
  char text[256];
  const ssize_t length = read(ends[0], text, sizeof text);
  for (const int end : ends) close(end);
  ASSERT_GT(length, 0);
  Peers peers;
  peers.watch({peers.introduction(), std::string(text, size_t(length)), "another machine 1"}, 0);
  EXPECT_TRUE(peers.ended().empty());
  kill(child, SIGKILL);
  for (int i = 0; i < 1000 && peers.ended().empty(); ++i) usleep(1000);
  EXPECT_EQ(peers.ended(), std::vector<int>{1});
  waitpid(child, nullptr, 0);
  EXPECT_EQ(peers.ended(), std::vector<int>{1});
}

}  // namespace exchange_test
}  // namespace mixtape::dist
