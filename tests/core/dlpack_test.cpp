// Exchange of tensors with another library, which is simulated by structs that the tests fill in.
#include "core/dlpack.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "core/allocator.h"
#include "core/dlpack_abi.h"
#include "core/format.h"
#include "core/half.h"
#include "tests/support/errors.h"

namespace mixtape {

namespace core_dlpack_test {

using test::error;

// A foreign f32 tensor [2, 3] with the values 0 to 5, which counts calls of its deleter. Fields may
// be changed before it is imported.
template <class Managed>
struct Foreign {
  std::array<float, 6> values = {0, 1, 2, 3, 4, 5};
  std::array<int64_t, 9> shape = {2, 3}, strides = {3, 1};
  int given_back = 0;
  Managed managed = {};

  Foreign() {
    managed.dl_tensor = {.data = values.data(),
                         .device = {kDLCPU, 0},
                         .ndim = 2,
                         .dtype = {kDLFloat, 32, 1},
                         .shape = shape.data(),
                         .strides = strides.data(),
                         .byte_offset = 0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* m) { ++static_cast<Foreign*>(m->manager_ctx)->given_back; };
    if constexpr (requires { managed.version; }) managed.version = {1, 3};
  }
  DLTensor* operator->() { return &managed.dl_tensor; }
};

template <class Managed>
struct DLPack : testing::Test {
  static Managed* exported(const Tensor& x) {
    if constexpr (std::is_same_v<Managed, DLManagedTensor>)
      return to_dlpack(x);
    else
      return to_dlpack_versioned(x);
  }
  // The error on import of a tensor whose description was changed; its deleter must have run.
  static std::string refusal(auto change) {
    Foreign<Managed> other;
    change(other);
    const std::string message = error([&] { from_dlpack(&other.managed); });
    EXPECT_EQ(other.given_back, 1) << message;
    return message;
  }
};
using Versions = testing::Types<DLManagedTensor, DLManagedTensorVersioned>;
TYPED_TEST_SUITE(DLPack, Versions);

TYPED_TEST(DLPack, ExportsWhereTheElementsAre) {
  const Tensor whole = from({0, 1, 2, 3, 4, 5}, {2, 3}, i32);
  const Tensor x = whole.with_layout({{2, 2}, {1, 3}, 1});  // columns 1 and 2, as rows
  TypeParam* const out = TestFixture::exported(x);
  const DLTensor& t = out->dl_tensor;
  EXPECT_EQ(t.data, whole.data<int>() + 1);
  EXPECT_EQ(t.byte_offset, 0u);
  EXPECT_EQ(std::pair(t.device.device_type, t.device.device_id), std::pair(kDLCPU, 0));
  EXPECT_EQ(t.ndim, 2);
  EXPECT_EQ(std::pair(t.shape[0], t.shape[1]), std::pair(int64_t{2}, int64_t{2}));
  EXPECT_EQ(std::pair(t.strides[0], t.strides[1]), std::pair(int64_t{1}, int64_t{3}));
  static_cast<int*>(t.data)[3] = 40;
  EXPECT_EQ(x.at(1), 40);
  whole.set(1, 10);
  EXPECT_EQ(static_cast<int*>(t.data)[0], 10);
  out->deleter(out);
}

// The bytes of a small tensor are inline in its storage, which must outlive the tensor.
TYPED_TEST(DLPack, WhatIsExportedOutlivesTheTensor) {
  for (const int64_t n : {3, 3000}) {
    const int64_t before = memory_stats().in_use;
    Tensor x({n}, f32);
    x.set(n - 1, 7);
    const std::weak_ptr<Storage> storage = x.storage();
    TypeParam* const out = TestFixture::exported(x);
    x.set_data(Tensor({n}, f64));
    x = {};
    ASSERT_FALSE(storage.expired());
    EXPECT_EQ(static_cast<float*>(out->dl_tensor.data)[n - 1], 7);
    out->deleter(out);
    EXPECT_TRUE(storage.expired());
    EXPECT_EQ(memory_stats().in_use, before);
  }
}

TYPED_TEST(DLPack, BringsEveryDtypeThereAndBack) {
  for (const DType t : {f64, f32, f16, bf16, i64, i32, u8, boolean, i8, i16, u16, u32}) {
    const Tensor x = from({1, 0, 1}, {3}, t);
    TypeParam* const out = TestFixture::exported(x);
    const DLDataType type = out->dl_tensor.dtype;
    const DLDataTypeCode code = t == boolean                      ? kDLBool
                                : t == bf16                       ? kDLBfloat
                                : t == u8 || t == u16 || t == u32 ? kDLUInt
                                : is_float(t)                     ? kDLFloat
                                                                  : kDLInt;
    EXPECT_EQ(type.code, code) << name(t);
    EXPECT_EQ(type.bits, 8 * size_of(t)) << name(t);
    EXPECT_EQ(type.lanes, 1) << name(t);
    const Tensor y = from_dlpack(out);
    EXPECT_EQ(y.dtype(), t);
    EXPECT_EQ(y.raw(), x.raw());
    EXPECT_EQ(to_vector(y), (std::vector<double>{1, 0, 1}));
  }
}

TYPED_TEST(DLPack, BringsScalarsAndNothing) {
  EXPECT_EQ(from_dlpack(TestFixture::exported(from({3}, {}))).item(), 3);
  TypeParam* const out = TestFixture::exported(Tensor({2, 0}, f16));
  EXPECT_EQ(out->dl_tensor.data, nullptr);
  const Tensor none = from_dlpack(out);
  EXPECT_EQ(fmt::format("{} {}", none.shape(), none.dtype()), "[2, 0] f16");
  EXPECT_NE(none.raw(), nullptr);
}

TYPED_TEST(DLPack, ImportsOneMemory) {
  Foreign<TypeParam> other;
  const int64_t before = memory_stats().in_use;
  {
    Tensor x = from_dlpack(&other.managed);
    EXPECT_EQ(x.raw(), other.values.data());
    EXPECT_EQ(to_vector(x), (std::vector<double>{0, 1, 2, 3, 4, 5}));
    x.set(4, 40);
    EXPECT_EQ(other.values[4], 40);
    other.values[5] = 50;
    EXPECT_EQ(x.at(5), 50);
    EXPECT_FALSE(x.is_unique());  // shared with the other library
    const Tensor row = x.with_layout({{3}, {1}, 3});
    x = {};
    EXPECT_EQ(other.given_back, 0);
    EXPECT_EQ(to_vector(row), (std::vector<double>{3, 40, 50}));
  }
  EXPECT_EQ(other.given_back, 1);
  EXPECT_EQ(memory_stats().in_use, before);
}

TYPED_TEST(DLPack, ImportsAnyStrides) {
  using Case = std::pair<std::function<void(Foreign<TypeParam>&)>, std::vector<double>>;
  for (const auto& [change, wanted] : {
           Case{[](auto& f) { f->strides = nullptr; }, {0, 1, 2, 3, 4, 5}},
           Case{[](auto& f) { f.shape = {3, 2}, f.strides = {1, 3}; }, {0, 3, 1, 4, 2, 5}},
           Case{[](auto& f) { f->byte_offset = 4, f.shape = {1, 3}; }, {1, 2, 3}},
           Case{[](auto& f) { f.strides = {0, 1}; }, {0, 1, 2, 0, 1, 2}},
           // Backwards, from the last element.
           Case{[](auto& f) { f->byte_offset = 20, f.strides = {-3, -1}; }, {5, 4, 3, 2, 1, 0}},
           Case{[](auto& f) { f->ndim = 0, f->shape = nullptr, f->strides = nullptr; }, {0}},
       }) {
    Foreign<TypeParam> other;
    change(other);
    {
      const Tensor x = from_dlpack(&other.managed);
      EXPECT_EQ(to_vector(x), wanted);
      // A view that starts elsewhere in the same storage.
      EXPECT_EQ(x.with_layout({{1}, {1}, x.layout().at(x.numel() - 1)}).item(), wanted.back());
    }
    EXPECT_EQ(other.given_back, 1);
  }
}

TYPED_TEST(DLPack, ImportsNothingWithoutMemory) {
  Foreign<TypeParam> other;
  other->data = nullptr, other.shape = {0, 3};
  const Tensor x = from_dlpack(&other.managed);
  EXPECT_EQ(x.shape(), (Shape{0, 3}));
  EXPECT_EQ(other.given_back, 1);  // there is nothing to share
}

TYPED_TEST(DLPack, NeedsNoDeleter) {
  Foreign<TypeParam> other;
  other.managed.deleter = nullptr;
  EXPECT_EQ(from_dlpack(&other.managed).at(2), 2);
}

TYPED_TEST(DLPack, RefusesWhatNoTensorCanBe) {
  const auto refusal = [](auto change) { return TestFixture::refusal(change); };
  EXPECT_EQ(refusal([](auto& f) {
              f->dtype = {kDLBool, 8, 1}, f->data = const_cast<char*>("\0\1\1\0\1\377");
            }),
            "from_dlpack: bool elements must be 0 or 1, got 255 (element 5)");
  const int64_t in_use = memory_stats(Device::cpu()).in_use;
  EXPECT_EQ(error([] { TestFixture::exported(Tensor({1024}, f8_e5m2)); }),
            "to_dlpack: f8_e5m2 cannot be exchanged (convert it)");
  EXPECT_EQ(memory_stats(Device::cpu()).in_use, in_use);
  EXPECT_EQ(refusal([](auto& f) { f->dtype = {kDLFloat, 8, 1}; }),
            "from_dlpack: unsupported element type: DLPack code 2, 8 bits, 1 lanes");
  EXPECT_EQ(refusal([](auto& f) { f->dtype = {kDLFloat, 32, 4}; }),
            "from_dlpack: unsupported element type: DLPack code 2, 32 bits, 4 lanes");
  EXPECT_EQ(refusal([](auto& f) { f->dtype = {5, 64, 1}; }),  // complex
            "from_dlpack: unsupported element type: DLPack code 5, 64 bits, 1 lanes");
  EXPECT_EQ(refusal([](auto& f) { f->device = {kDLCUDA, 1}; }),
            "from_dlpack: memory must be on the CPU, got DLPack device type 2, number 1");
  EXPECT_EQ(refusal([](auto& f) { f->ndim = -1; }), "from_dlpack: ndim must be >= 0, got -1");
  EXPECT_EQ(refusal([](auto& f) { f->ndim = 9; }),
            "from_dlpack: at most 8 dimensions are possible, got 9");
  EXPECT_EQ(refusal([](auto& f) { f.shape[1] = -3; }),
            "from_dlpack: sizes cannot be negative: [2, -3]");
  EXPECT_EQ(refusal([](auto& f) { f->data = nullptr; }),
            "from_dlpack: data is a null pointer for [2, 3] of f32");
  EXPECT_EQ(
      refusal([](auto& f) { f->byte_offset = 2; }),
      "from_dlpack: f32 elements must be aligned to 4 bytes, got data 2 bytes after a multiple");
  EXPECT_EQ(error([] { from_dlpack(static_cast<TypeParam*>(nullptr)); }),
            "from_dlpack: the struct is a null pointer");
}

TYPED_TEST(DLPack, RefusesToExportHistory) {
  const Tensor x = from({1, 2}, {2}).set_requires_grad();
  EXPECT_EQ(error([&] { TestFixture::exported(x); }),
            "to_dlpack: [2] of f32 requires a gradient: detach() it");
  EXPECT_EQ(from_dlpack(TestFixture::exported(x.detach())).raw(), x.raw());
}

TEST(DLPackVersioned, SaysWhatItIs) {
  DLManagedTensorVersioned* const out = to_dlpack_versioned(from({1}, {1}));
  EXPECT_EQ(std::pair(out->version.major, out->version.minor), std::pair(1u, 0u));
  EXPECT_EQ(out->flags, 0u);  // neither read-only nor a copy
  out->deleter(out);
}

TEST(DLPackVersioned, RefusesAnotherMajorVersion) {
  Foreign<DLManagedTensorVersioned> other;
  other.managed.version = {2, 1};
  other->ndim = 100;  // not looked at
  EXPECT_EQ(error([&] { from_dlpack(&other.managed); }),
            "from_dlpack: DLPack version must be 1.x, got 2.1");
  EXPECT_EQ(other.given_back, 1);
}

// A Tensor is always writable, so a read-only one is copied.
TEST(DLPackVersioned, CopiesWhatIsReadOnly) {
  Foreign<DLManagedTensorVersioned> other;
  other.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  other->byte_offset = 20, other.strides = {-3, -1};
  const Tensor x = from_dlpack(&other.managed);
  EXPECT_EQ(other.given_back, 1);
  EXPECT_EQ(to_vector(x), (std::vector<double>{5, 4, 3, 2, 1, 0}));
  x.set(0, 50);
  EXPECT_EQ(other.values[5], 5);
}

}  // namespace core_dlpack_test
}  // namespace mixtape
