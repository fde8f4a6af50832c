// Streams of several threads on one tensor, pinned memory that they share, and errors of launches.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "autograd/ops.h"
#include "core/pinned_blocks.h"
#include "core/stream.h"
#include "kernels/kernels.h"
#include "optim/clip.h"
#include "optim/optimizers.h"
#include "tests/support/errors.h"
#ifdef MIXTAPE_EMULATED
#include "emulator/simt/runtime.h"
#endif

namespace mixtape {
using namespace internal;
namespace device_streams_test {

const Device device = Device::cuda();

TEST(Streams, AnErrorOfAKernelNamesThoseThatMayHaveCausedIt) {
  const Tensor x = ones({3}, f32, device);
  for (int i = 0; i < 20; ++i) relu(x);
  exp(x);
  const int illegal_address = 700, out_of_memory = 2, launch_failure = 719, busy = 720;
  const std::string text = runtime::last_launches(illegal_address);
  EXPECT_EQ(text.find("; launched last, the newest first: "), 0u) << text;
  EXPECT_NE(
      text.find("(with CUDA_LAUNCH_BLOCKING=1 in the environment, the call that failed is the "
                "one)"),
      std::string::npos);
  EXPECT_EQ(std::ranges::count(text, ','), 15 + 2) << text;  // two of the sentence
  EXPECT_EQ(runtime::last_launches(launch_failure), text);
  EXPECT_EQ(runtime::last_launches(out_of_memory), "");
  EXPECT_EQ(runtime::last_launches(busy), "");
}

TEST(Streams, AnOldDriverIsTold) {
  EXPECT_EQ(runtime::driver_warning("no CUDA device: it is old", 13000),
            "no CUDA device: it is old. This machine has one, but the library was built with CUDA "
            "13.0, which needs driver 580 or newer: Device::best() is the CPU");
  EXPECT_NE(runtime::driver_warning("", 12080).find("CUDA 12.8, which needs driver 525"),
            std::string::npos);
}

#ifdef MIXTAPE_EMULATED
// Two threads read source(), whose elements are 1, then write() changes them. The first reader
// queues its work after the other, or the writer, began to wait for it.
void write_after_reads(bool by_writer, const std::function<Tensor()>& source,
                       const std::function<void()>& write) {
  const simt::LateStreams late;
  const Tensor y({1000}, f32, device), z({1000}, f32, device);
  std::barrier turn(2);
  std::thread first([&] {
    const Tensor x = source();
    const View &from = x, &to = y;
    turn.arrive_and_wait();
    turn.arrive_and_wait();
    kernels::convert(device, from, to);
  });
  turn.arrive_and_wait();
  const auto read = [&] { kernels::convert(device, source(), z); };
  if (by_writer)
    read();
  else
    std::thread(read).join();
  turn.arrive_and_wait();
  first.join();
  write();
  EXPECT_NE(source().at(0), 1);
  EXPECT_EQ(y.at(0), 1) << by_writer;
  EXPECT_EQ(z.at(0), 1) << by_writer;
}

TEST(Streams, AWriteInPlaceWaitsForAllThatRead) {
  const std::vector<std::function<void(const Tensor&)>> writes = {
      [](const Tensor& x) { fill_(x, 2); },
      [](const Tensor& x) { add_(x, 4); },
      [](const Tensor& x) { x.set(0, 6); },
      [](const Tensor& x) {
        x.set_requires_grad();
        optim::SGD opt({x}, {.lr = 1});
        x.set_grad(ones({1000}, f32, device));
        opt.step();
      },
      [](const Tensor& x) {
        const Tensor parameter = ones({1000}, f32, device).set_requires_grad();
        parameter.set_grad(x);
        optim::clip_grad_norm({parameter}, 0.5);
      },
  };
  for (const bool by_writer : {false, true})
    for (const auto& write : writes) {
      const Tensor x = full({1000}, 1, f32, device);
      write_after_reads(by_writer, [&] { return x; }, [&] { write(x); });
    }
}
TEST(Streams, AStepWaitsForAllThatReadThe16BitCopy) {
  for (const bool by_writer : {false, true}) {
    const Tensor p = full({1000}, 2, f32, device).set_requires_grad();
    p.set_grad(ones({1000}, f32, device));
    optim::SGD opt({p}, {.lr = 1}, {.shadow = bf16});
    opt.step();  // makes the copy
    const uint64_t copy = p.shadow().storage()->id();
    write_after_reads(by_writer, [&] { return p.shadow(); }, [&] { opt.step(); });
    EXPECT_EQ(p.shadow().storage()->id(), copy) << "it was rewritten";
  }
}

TEST(Streams, AStepWaitsForAllThatReadItsState) {
  for (const bool by_writer : {false, true})
    for (const std::string_view name : {"state.0.exp_avg", "state.0.master"}) {
      const Tensor p = zeros({1000}, bf16, device).set_requires_grad();
      optim::Adam opt({p}, {.lr = 1, .betas = {0, 0}}, {.multi_precision = true});
      const auto step = [&](double gradient) {
        p.set_grad(full({1000}, gradient, bf16, device));
        opt.step();
      };
      step(1);
      const auto state = [&] {
        for (const auto& [key, value] : opt.state_dict())
          if (key == name) return value;
        ADD_FAILURE() << name;
        return Tensor();
      };
      fill_(state(), 1);
      write_after_reads(by_writer, state, [&] { step(3); });
    }
}

TEST(Streams, ACopyDoesNotWaitForAStreamThatIsFarBehind) {
  static auto& pool = *new PinnedBlocks(64, 3);
  const simt::LateStreams late;
  const auto use = [] {
    const PinnedBlock block = pool.take(device);
    runtime::cuda().record(block.mark, Stream::current(device).handle, device.index);
    pool.give(block);
    return block.data;
  };
  std::thread([&] { EXPECT_NE(use(), use()); }).join();
  void* const mine = use();
  synchronize(device);
  const int64_t before = synchronizations();
  EXPECT_EQ(use(), mine);
  EXPECT_EQ(synchronizations(), before);
  EXPECT_EQ(use(), mine) << "all three are in use: it waits for its own stream";
  EXPECT_EQ(synchronizations(), before + 1);
  synchronize(device);
  std::thread([&] { EXPECT_EQ(use(), mine) << "a block that is free serves any stream"; }).join();
}

TEST(Streams, ALaunchWithoutRoomForItsCodeEmptiesTheCache) {
  const Tensor x = from({-1, 2}, {2}).to(device);
  relu(x);
  for (const Device d : runtime::devices()) empty_cache(d);
  {
    const simt::FullDevice full;
    const std::string said = test::error([&] { relu(x); });
    EXPECT_NE(said.find("relu: CUDA: kernel "), std::string::npos) << said;
    EXPECT_NE(said.find(" bytes of shared memory: out of memory"), std::string::npos) << said;
  }
  {
    const Tensor large({1 << 22}, f32, device);
  }
  const int64_t reserved = memory_stats(device).reserved;
  const simt::FullDevice full;
  EXPECT_EQ(to_vector(relu(x)), (std::vector<double>{0, 2}));
  EXPECT_LT(memory_stats(device).reserved, reserved);
}
#endif

}  // namespace device_streams_test
}  // namespace mixtape
