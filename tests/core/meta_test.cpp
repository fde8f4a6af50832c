// Tensors without memory: shapes and counts are those of the device that meta stands in for.
#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/dlpack.h"
#include "core/graph.h"
#include "core/readback.h"
#include "core/stream.h"
#include "core/tensor.h"
#include "tests/support/errors.h"

namespace mixtape {
namespace meta_test {

const Device shapes = Device::meta(), shapes_of_gpu = Device::meta(DeviceType::cuda);

TEST(Meta, IsADeviceOfItsOwn) {
  for (const Device d : {shapes, shapes_of_gpu}) {
    EXPECT_TRUE(d.is_meta() && !d.is_host());
    d.require();
    const DefaultDevice here(d);
    EXPECT_EQ(Tensor({2}, f32).device(), d);
    synchronize(d);
  }
  EXPECT_TRUE(shapes.is_like_cpu() && Device::cpu().is_like_cpu());
  EXPECT_FALSE(shapes_of_gpu.is_like_cpu() || Device::cuda().is_like_cpu());
  EXPECT_NE(Device::best().type, DeviceType::meta);
  EXPECT_ERROR((Device{DeviceType::meta, 2}.require()), "there is no device meta:2");
}

TEST(Meta, MultipliesFastWhatTheDeviceWould) {
  for (const DType t : {f64, f32, f16, bf16, i32})
    EXPECT_EQ(shapes.supports_fast(t), Device::cpu().supports_fast(t));
  for (const DType t : {f32, f16, bf16}) EXPECT_TRUE(shapes_of_gpu.supports_fast(t));
}

// (Small storages of the CPU are not allocated.)
TEST(Meta, CountsBytesWithoutTakingThem) {
  for (const Device d : {shapes, shapes_of_gpu}) {
    const MemoryStats before = memory_stats(d);
    reset_peak(d);
    {
      const Tensor huge({int64_t(1) << 38}, f32, d), small({4}, f32, d);
      const Tensor view = huge.with_layout({{3, 5}, {7, 1}, 9});
      EXPECT_EQ(view.offset(), 9);
      const int64_t bytes = (int64_t(1) << 40) + (d == shapes ? 0 : 16);
      EXPECT_EQ(memory_stats(d).in_use, before.in_use + bytes);
      EXPECT_EQ(huge.storage()->counted_bytes() + small.storage()->counted_bytes(), size_t(bytes));
    }
    const Tensor again({1000}, f32, d);
    EXPECT_EQ(memory_stats(d).in_use, before.in_use + 4000);
    EXPECT_GE(memory_stats(d).peak, before.in_use + (int64_t(1) << 40));
  }
  empty_cache(shapes);
}

TEST(Meta, HasNoValues) {
  const Tensor x({2, 3}, f32, shapes);
  const char* const what = "a tensor on meta:cpu has a shape, but no values to read";
  EXPECT_ERROR(x.at(1), what);
  EXPECT_ERROR(Tensor({}, f32, shapes).item(), what);
  EXPECT_ERROR(to_vector(x), what);
  EXPECT_ERROR(to_string(x), what);
  EXPECT_ERROR(x.copied_to(Device::cpu()), what);
  EXPECT_ERROR(x.copied_to(shapes_of_gpu).copied_to(Device::cpu()), "on meta:cuda has a shape");
  EXPECT_ERROR(x.data<float>(), "the host cannot reach a tensor on meta:cpu");
  EXPECT_ERROR(to_dlpack(x), "a tensor on meta:cpu has no memory that could be shared");
  EXPECT_ERROR(Graph{shapes}, "meta:cpu runs its work at once");
}

TEST(Meta, TakesValuesAndForgetsThem) {
  const Tensor x = from({1, 2, 3, 4}, {2, 2}).copied_to(shapes);
  EXPECT_EQ(x.device(), shapes);
  EXPECT_EQ(x.shape(), (Shape{2, 2}));
  const uint64_t version = x.version();
  x.set(0, 5);
  EXPECT_GT(x.version(), version);
}

// The library's flags and counters: nothing overflowed.
TEST(Meta, ReadsBackZeros) {
  const Tensor flags({64}, f32, shapes);
  const Readback copy(flags.raw(), 256, shapes);
  EXPECT_TRUE(copy.has_arrived());
  for (int i = 0; i < 64; ++i) EXPECT_EQ(copy.as<float>()[i], 0);
  check_later(flags.raw(), 4, shapes, [](const void*) { return "wrong"; });
}

TEST(Meta, IsTimedAsTheHostIs) {
  const runtime::Event start(shapes);
  const runtime::Event stop(shapes);
  EXPECT_TRUE(start.has_passed());
  EXPECT_GE(start.milliseconds_until(stop), 0);
}

}  // namespace meta_test
}  // namespace mixtape
