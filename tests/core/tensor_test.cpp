// core without the layers above it: tensors as handles, random numbers, errors, names.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <numeric>
#include <thread>

#include "core/check.h"
#include "core/format.h"
#include "core/inline_vector.h"
#include "core/philox.h"
#include "core/random.h"
#include "core/scope.h"
#include "core/state_dict.h"
#include "core/warn.h"
#include "tests/support/errors.h"
#include "tests/support/node.h"

namespace mixtape {
using namespace internal;

namespace core_test {

using test::error, test::full_error;

TEST(Error, NamesModuleOpValuesAndPlace) {
  const Scope module("", intern("decoder.3.mlp"));
  const Scope outer("linear"), inner("matmul");
  int line = 0;
  const std::string text = full_error([&] {
    line = __LINE__ + 1;
    check(3 == 2, "inner dimensions differ: {} and {}", 3, 2);
  });
  EXPECT_EQ(text, "decoder.3.mlp: linear: matmul: inner dimensions differ: 3 and 2\n  at " __FILE__
                  ":" +
                      std::to_string(line));
}

TEST(Error, NamesWherePeopleSaidTheyAre) {
  const Scope module("", intern("head"));
  const SourceScope here;
  const Scope op("exp");
  EXPECT_EQ(error([] { fail("too large"); }),
            "head: tensor_test.cpp:" + std::to_string(__LINE__ - 3) + ": exp: too large");
}

TEST(Error, NeedsNoScope) {
  EXPECT_EQ(error([] { fail("no {}", "way"); }), "no way");
  EXPECT_EQ(error([] { check(true, "never formatted"); }), "no error");
  EXPECT_EQ(error([] {
              const Scope op("relu");
              raise("plain");
            }),
            "relu: plain");
}

TEST(Format, KnowsOurTypes) {
  EXPECT_EQ(fmt::format("{} {} {} {}", bf16, Shape{2, 3}, Device::cuda(1), Precision::Low),
            "bf16 [2, 3] cuda:1 Low");
}

TEST(DType, KernelsOfFloatsRefuseOthers) {
  EXPECT_EQ(error([] { visit_float(i32, []<class T>() {}); }),
            "expected a float dtype, got i32 (convert it)");
  EXPECT_EQ(error([] { visit(i16, []<class T>() {}); }),
            "i16 elements are stored, but not computed with (convert them)");
  EXPECT_EQ(
      error([] { visit_float(u8, []<class T>() {}); }),
      "expected a float dtype, got u8 (convert it; train::transforms::to_float() for images)");
  const auto pair = [](DType in, DType out) {
    return error([=] { visit_float(in, out, []<class In, class Out>() {}); });
  };
  EXPECT_EQ(pair(f32, f16), "from f32 a kernel writes f32, not f16 (convert the result)");
  EXPECT_EQ(pair(f16, bf16), "from f16 a kernel writes f16 or f32, not bf16 (convert the result)");
  EXPECT_EQ(pair(f64, f32), "from f64 a kernel writes f64, not f32 (convert the result)");
  EXPECT_EQ(pair(f16, f32) + pair(f64, f64) + pair(bf16, bf16), "no errorno errorno error");
}

TEST(DType, ParsesTheNamesPeopleUse) {
  for (auto text : {"f16", "fp16", "float16", "half", "FP16", "Half"})
    EXPECT_EQ(parse_dtype(text), f16) << text;
  for (auto text : {"bf16", "bfloat16"}) EXPECT_EQ(parse_dtype(text), bf16) << text;
  for (auto text : {"f32", "fp32", "float32", "float"}) EXPECT_EQ(parse_dtype(text), f32) << text;
  for (auto text : {"f64", "fp64", "float64", "double"}) EXPECT_EQ(parse_dtype(text), f64) << text;
  for (DType t :
       {f64, f32, f16, bf16, i64, i32, u8, boolean, i8, i16, u16, u32, f8_e4m3, f8_e5m2, f8_e8m0})
    EXPECT_EQ(parse_dtype(name(t)), t);
  EXPECT_EQ(
      error([] { parse_dtype("fp8"); }),
      "unknown dtype 'fp8'; known are f64, fp64, float64, double, f32, fp32, float32, float, f16, "
      "fp16, float16, half, bf16, bfloat16, i64, int64, long, i32, int32, int, u8, uint8, bool, "
      "boolean, i8, int8, i16, int16, u16, uint16, u32, uint32, f8_e4m3, float8_e4m3fn, f8_e5m2, "
      "float8_e5m2, f8_e8m0, float8_e8m0fnu");
}

TEST(Device, ParsesAndPrints) {
  for (Device d : {Device::cpu(), Device::cuda(), Device::cuda(3), Device::meta(),
                   Device::meta(DeviceType::cuda)})
    EXPECT_EQ(Device::parse(d.to_string()), d);
  EXPECT_EQ(Device::parse("meta"), Device::parse("meta:cpu"));
  EXPECT_EQ(Device::parse("meta:cuda").to_string(), "meta:cuda");
  EXPECT_EQ(Device::parse("cuda"), Device::cuda(0));
  for (auto text : {"gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999", "meta:0",
                    "meta:meta", ""})
    EXPECT_EQ(error([=] { Device::parse(text); }),
              fmt::format("unknown device '{}'; known are cpu, cuda, cuda:0, cuda:1, ..., "
                          "meta:cpu, meta:cuda",
                          text));
}

TEST(Device, KnowsWhatItMultipliesFast) {
  const Device cpu = Device::cpu();
  for (const DType t : {f64, f32}) EXPECT_TRUE(cpu.supports_fast(t)) << fmt::format("{}", t);
  for (const DType t : {f16, i64, i32, u8, boolean})
    EXPECT_FALSE(cpu.supports_fast(t)) << fmt::format("{}", t);
  std::ifstream info("/proc/cpuinfo");
  const std::string text{std::istreambuf_iterator<char>(info), {}};
#ifdef __aarch64__
  const std::string_view first = "CPU implementer", name = " bf16";
#else
  const std::string_view first = "vendor_id", name = "avx512_bf16";
#endif
  if (text.find(first) != std::string::npos) {  // an emulator may show the host's
    // (Only model 85 of Intel's processors has fast dot products of bf16.)
    const bool slow = text.find("GenuineIntel") != std::string::npos &&
                      text.find("model\t\t: 85\n") == std::string::npos;
    EXPECT_EQ(cpu.supports_fast(bf16), !slow && text.find(name) != std::string::npos);
  }
  EXPECT_THROW(Device::cuda(99).supports_fast(f16), Error);
}

TEST(Device, MemoryOfOneThatIsMissingIsAnError) {
  EXPECT_NE(error([] { Tensor({2}, f32, Device::cuda(-1)); }), "");
  const std::string missing = error([] { Tensor({2}, f32, Device::cuda(7)); });
  EXPECT_TRUE(missing.starts_with("there is no device cuda:7: ")) << missing;
  EXPECT_ERROR(memory_stats(Device::cuda(700)), "there is no device cuda:700: ");
  EXPECT_EQ(error([] { DefaultDevice on(Device::cuda(7)); }), missing);
  for (const auto ask :
       {+[] { (void)memory_stats(Device::cuda(-1)); }, +[] { reset_peak(Device::cuda(-1)); },
        +[] { empty_cache(Device::cuda(-1)); }})
    EXPECT_NE(error(ask), "no error");
}

TEST(Philox, AgreesWithRandom123) {
  using B = Philox::Block;
  EXPECT_EQ(Philox::bits({0, 0, 0, 0}, 0, 0), (B{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox::bits({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u),
            (B{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox::bits({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (B{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(Philox::bits(0x0000000200000001, 0x0000000400000003), Philox::bits({3, 4, 0, 0}, 1, 2));
}

TEST(Philox, UniformStaysBelowOne) {
  EXPECT_EQ(Philox::uniform(0), 0.0f);
  EXPECT_EQ(Philox::uniform(~0u), 1.0f - 0x1p-24f);
}

TEST(RandomGenerator, DrawsDependOnSeedAndPositionOnly) {
  RandomGenerator a(7), b(7), other(8);
  const uint32_t first = a.next(), second = a.next();
  EXPECT_EQ(first, Philox::bits(7, 0)[0]);
  EXPECT_EQ(second, Philox::bits(7, 1)[0]);
  EXPECT_NE(other.next(), first);
  b.set_offset(1);
  EXPECT_EQ(b.next(), second);
  EXPECT_EQ(b.reserve(5), 2u);  // two blocks
  EXPECT_EQ(b.reserve(0), 4u);
  EXPECT_EQ(b.offset(), 4u);
}

TEST(RandomGenerator, UniformHas53Bits) {
  RandomGenerator g(1);
  double sum = 0;
  bool fine = false;
  for (int i = 0; i < 10000; ++i) {
    const double u = g.uniform();
    ASSERT_TRUE(0 <= u && u < 1);
    fine |= std::fmod(u * 0x1p53, 2) == 1;
    sum += u;
  }
  EXPECT_TRUE(fine);
  EXPECT_NEAR(sum / 10000, 0.5, 0.015);  // five standard deviations
}

TEST(RandomGenerator, BelowCoversItsRangeEvenly) {
  RandomGenerator g(3);
  std::array<int, 6> counts{};
  for (int i = 0; i < 60000; ++i) ++counts[size_t(g.below(6))];
  for (int c : counts) EXPECT_NEAR(c, 10000, 500);
  // Plain remainders of 2^64 values modulo 3 * 2^62 would fall in the lowest third twice as often.
  const int64_t bound = int64_t{3} << 61;
  int low = 0;
  for (int i = 0; i < 30000; ++i) low += g.below(bound) < bound / 2;
  EXPECT_NEAR(low, 15000, 500);
  EXPECT_EQ(g.below(1), 0);
  EXPECT_EQ(error([&] { g.below(0); }), "the bound must be > 0, got 0");
}

// Assignment would leave the thread with the stream of a destroyed Seed.
static_assert(!std::is_copy_assignable_v<Seed> && !std::is_move_assignable_v<Seed>);

TEST(RandomGenerator, SeedsNestAndBelongToTheirThread) {
  const uint64_t before = generator().offset();
  EXPECT_EQ(generator().seed(), 0u);
  {
    Seed outer(5);
    generator().next();
    {
      const Seed inner(6);
      EXPECT_EQ(generator().seed(), 6u);
      std::thread([] { EXPECT_NE(generator().seed(), 6u); }).join();
    }
    EXPECT_EQ(generator().seed(), 5u);
    EXPECT_EQ((*outer).offset(), 1u);
  }
  EXPECT_EQ(generator().seed(), 0u);
  EXPECT_EQ(generator().offset(), before);
}

TEST(Generator, ThreadsWithoutASeedHaveStreamsOfTheirOwn) {
  const auto in_thread = [](auto f) {
    double drawn = 0;
    std::thread([&] { drawn = f(); }).join();
    return drawn;
  };
  const auto draw = [] { return generator().uniform(); };
  EXPECT_EQ(generator().seed(), 0u) << "the main thread";
  const double first = in_thread(draw), second = in_thread(draw), third = in_thread(draw);
  EXPECT_TRUE(first != second && second != third && first != third);
  const auto seeded = [&] {
    const Seed seed(7);
    return draw();
  };
  EXPECT_EQ(in_thread(seeded), seeded());
}

TEST(InlineVector, GrowsMovesAndFrees) {
  using Pointers = InlineVector<std::shared_ptr<int>, 2>;
  const auto p = std::make_shared<int>(1);
  {
    Pointers few{p, p};
    EXPECT_EQ(p.use_count(), 3);
    Pointers many = few;
    for (int i = 0; i < 5; ++i) many.push_back(p);
    EXPECT_EQ(many.size(), 7u);
    EXPECT_EQ(p.use_count(), 10);
    const Pointers moved = std::move(many), moved_few = std::move(few);
    EXPECT_EQ(moved.size() + moved_few.size(), 9u);
    EXPECT_EQ(p.use_count(), 10);
    many = moved;
    few = many;
    EXPECT_EQ(few.back(), p);
    EXPECT_EQ(p.use_count(), 1 + 9 + 14);
    few.clear();
    EXPECT_TRUE(few.empty());
    EXPECT_EQ(p.use_count(), 1 + 9 + 7);
  }
  EXPECT_EQ(p.use_count(), 1);
  InlineVector<int, 1> numbers;
  for (int i = 0; i < 100; ++i) numbers.push_back(i);
  EXPECT_EQ(std::accumulate(numbers.begin(), numbers.end(), 0), 4950);
}

TEST(Tensor, HandlesShareViewsDoToo) {
  const Tensor x = from({1, 2, 3, 4, 5, 6}, {2, 3}), same = x;
  EXPECT_TRUE(same.is_same(x));
  EXPECT_EQ(same.id(), x.id());
  const Tensor column = x.with_layout(select(x.layout(), 1, -1));
  EXPECT_EQ(column.shape(), Shape{2});
  EXPECT_EQ(to_vector(column), (std::vector<double>{3, 6}));
  EXPECT_FALSE(column.is_contiguous());
  EXPECT_EQ(column.data<float>(), x.data<float>() + 2);
  EXPECT_EQ(column.nbytes(), 2 * sizeof(float));
  const View v = column;
  EXPECT_EQ(v.layout.offset, 0);
  EXPECT_EQ(v.as<float>()[v.layout.at(1)], 6);
  column.set(1, 60);
  EXPECT_EQ(x.at(5), 60);
  EXPECT_EQ(x.version(), 1u);
  EXPECT_FALSE(x.detach().is_same(x));
  EXPECT_EQ(x.detach().storage(), x.storage());
  EXPECT_FALSE(Tensor());
  EXPECT_EQ(x.size(-1), 3);
}

TEST(Tensor, EveryDTypeReadsAndWrites) {
  for (DType t : {f64, f32, f16, bf16, i64, i32, u8, boolean}) {
    const Tensor x = from({0, 1, 1, 0}, {2, 2}, t);
    EXPECT_EQ(x.nbytes(), 4 * size_of(t));
    EXPECT_EQ(x.storage()->bytes(), x.nbytes());
    EXPECT_EQ(to_vector(x), (std::vector<double>{0, 1, 1, 0}));
    x.set(0, 1);
    EXPECT_EQ(x.at(0), 1);
  }
  EXPECT_EQ(from({2.5}, {1}, boolean).item(), 1);
  EXPECT_EQ(from({1.0 / 3}, {}, f16).item(), double(float(Half(1.0 / 3))));
  EXPECT_EQ(from({-0x1p63}, {1}, i64).item(), -0x1p63);
}

TEST(Tensor, ReadsAsTheTypeAskedFor) {
  const int64_t odd = (int64_t{1} << 53) + 1;  // more bits than a double has
  Tensor whole({2}, i64);
  whole.data<int64_t>()[0] = odd;
  whole.data<int64_t>()[1] = -1;
  EXPECT_EQ(whole.at<int64_t>(0), odd);
  EXPECT_EQ(to_vector<int64_t>(whole), (std::vector<int64_t>{odd, -1}));
  for (DType t : {f64, f32, f16, bf16}) {
    const Tensor x = from({-2.5, 0}, {2}, t);
    EXPECT_EQ(x.at<float>(0), -2.5f);
    EXPECT_EQ(x.at<int32_t>(0), -2);
    EXPECT_EQ(to_vector<bool>(x), (std::vector<bool>{true, false}));
  }
  EXPECT_EQ(error([&] { whole.at<int32_t>(0); }), "9007199254740993 does not fit i32");
  EXPECT_EQ(error([&] { whole.at<uint8_t>(1); }), "-1 does not fit u8");
  EXPECT_EQ(error([] { from({NAN}, {1}).item<int64_t>(); }), "nan does not fit i64");
  EXPECT_EQ(error([] { from({-1}, {}, i64).item<size_t>(); }), "-1 does not fit u64");
  EXPECT_EQ(error([] { to_vector<signed char>(from({200}, {1}, u8)); }), "200 does not fit i8");
  EXPECT_EQ(error([] { from({70000}, {1}).at<unsigned short>(0); }), "70000 does not fit u16");
}

template <class T>
struct Numbers : testing::Test {};
using NumberTypes = testing::Types<double, float, Half, BFloat16, bool, char, signed char, short,
                                   int, long, long long, unsigned char, unsigned short, unsigned,
                                   unsigned long, unsigned long long, size_t, int64_t, uint64_t>;
TYPED_TEST_SUITE(Numbers, NumberTypes);

TYPED_TEST(Numbers, AreReadFromEveryDtype) {
  for (const DType t : {f64, f32, f16, bf16, i64, i32, u8, boolean}) {
    const Tensor x = from({0, 1}, {2}, t);
    EXPECT_EQ(x.at<TypeParam>(0), TypeParam(0.0f));
    EXPECT_EQ(from({1}, {}, t).item<TypeParam>(), TypeParam(1.0f));
    EXPECT_EQ(to_vector<TypeParam>(x), (std::vector<TypeParam>{TypeParam(0.0f), TypeParam(1.0f)}));
  }
  using Limits = std::numeric_limits<TypeParam>;
  if constexpr (std::is_integral_v<TypeParam> && !std::is_same_v<TypeParam, bool>) {
    const auto refuses = [](double value, DType t) {
      return error([&] { from({value}, {}, t).item<TypeParam>(); }).find("does not fit") !=
             std::string::npos;
    };
    const double end = std::ldexp(1, Limits::digits);
    EXPECT_TRUE(refuses(end, f64));
    EXPECT_TRUE(refuses(NAN, f32));
    EXPECT_EQ(from({double(Limits::min()) - 0.5}, {}, f64).item<TypeParam>(), Limits::min());
    if (sizeof(TypeParam) < 8) {
      EXPECT_TRUE(refuses(end, i64));
      EXPECT_TRUE(refuses(double(Limits::min()) - 1, i64));
      EXPECT_EQ(from({end - 1}, {}, i64).item<TypeParam>(), Limits::max());
    }
    if (std::is_unsigned_v<TypeParam>) {
      EXPECT_TRUE(refuses(-1, i32));
    }
  }
}

TEST(FromBlob, SharesAndFreesTheMemory) {
  int freed = 0;
  {
    auto* const data = new float[6]{0, 1, 2, 3, 4, 5};
    Tensor row;
    {
      const Tensor x = from_blob(data, {2, 3}, f32, [&](void* p) {
        ++freed;
        delete[] static_cast<float*>(p);
      });
      EXPECT_EQ(x.data<float>(), data);
      EXPECT_TRUE(x.is_contiguous());
      row = x.with_layout(select(x.layout(), 0, 1));
      x.set(3, 7);
    }
    EXPECT_EQ(to_vector(row), (std::vector<double>{7, 4, 5}));
    EXPECT_EQ(data[3], 7);
    EXPECT_EQ(freed, 0);
  }
  EXPECT_EQ(freed, 1);

  double whole[] = {1, 2};
  const Tensor typed = from_blob(whole, {2}),
               with = from_blob(whole, {2}, [&](double*) { ++freed; });
  EXPECT_EQ(typed.dtype(), f64);
  EXPECT_EQ(with.at(1), 2);
}

TEST(FromBlob, RefusesWhatItCannotRead) {
  alignas(8) unsigned char bytes[24] = {1, 0, 2};
  int freed = 0;
  const auto count = [&](void*) { ++freed; };
  EXPECT_ERROR(from_blob(nullptr, {2}, f32, count), "data is a null pointer for [2] of f32");
  EXPECT_ERROR(from_blob(bytes + 2, {2}, f64, count),
               "f64 elements must be aligned to 8 bytes, got data 2 bytes after a multiple");
  EXPECT_ERROR(from_blob(bytes, {3}, boolean, count),
               "bool elements must be 0 or 1, got 2 (element 2)");
  EXPECT_EQ(freed, 3);
  EXPECT_EQ(from_blob(nullptr, {0, 2}, i64).shape(), (Shape{0, 2}));
}

TEST(Tensor, ErrorsNameBothValues) {
  const Tensor x = from({1, 2}, {2});
  EXPECT_EQ(error([&] { x.data<double>(); }), "the tensor is f32, not f64");
  const std::string missing = "the tensor is undefined: default-constructed or moved from";
  EXPECT_EQ(error([] { Tensor().shape(); }), missing);
  EXPECT_EQ(error([] { Tensor().detach(); }), missing);
  EXPECT_EQ(error([] { Tensor().set_requires_grad(); }), missing);
  EXPECT_EQ(error([&] { x.item(); }), "item() needs one element, but [2] has 2");
  EXPECT_EQ(error([&] { x.at(2); }), "element 2 is out of range for shape [2]");
  EXPECT_EQ(error([&] { x.set(-1, 0); }), "element -1 is out of range for shape [2]");
  EXPECT_EQ(error([&] { x.size(1); }), "dimension 1 is out of range for rank 1");
  EXPECT_EQ(error([] { from({1, 2, 3}, {2}); }), "3 values for the shape [2], which needs 2");
  EXPECT_EQ(error([] { from({256}, {1}, u8); }), "256 does not fit u8");
  EXPECT_EQ(error([] { from({NAN}, {1}, i32); }), "nan does not fit i32");
  EXPECT_EQ(error([] { from({0x1p63}, {1}, i64); }), "9.223372036854776e+18 does not fit i64");
  EXPECT_EQ(error([] { Tensor({-1}, f32); }), "sizes cannot be negative: [-1]");
  EXPECT_EQ(error([] { Tensor({int64_t{1} << 61}, f64); }),
            "[2305843009213693952] of f64 has too many bytes");
  EXPECT_EQ(error([&] { x.with_layout(Layout({3}, {1})); }),
            "elements 0 to 2 are out of range for a storage of 2");
  EXPECT_EQ(error([&] { x.with_layout(Layout({2}, {-1})); }),
            "elements -1 to 0 are out of range for a storage of 2");
}

TEST(Tensor, KnowsLeavesFromResults) {
  const Tensor x = from({1, 2}, {2});
  EXPECT_FALSE(x.requires_grad());
  EXPECT_TRUE(x.set_requires_grad().requires_grad());
  EXPECT_TRUE(x.is_leaf());
  EXPECT_FALSE(x.detach().requires_grad());
  EXPECT_FALSE(x.set_requires_grad(false).requires_grad());
  EXPECT_EQ(error([] { from({1}, {1}, i64).set_requires_grad(); }),
            "only float tensors can require a gradient, got i64");
  const Tensor result = from({1}, {1});
  result.set_grad_fn(std::make_shared<Node>());
  EXPECT_TRUE(result.requires_grad());
  EXPECT_FALSE(result.is_leaf());
  EXPECT_EQ(error([&] { result.set_requires_grad(); }),
            "set_requires_grad() of the result of an op (detach() it first)");
}

TEST(Tensor, SetDataReachesEveryHandle) {
  const Tensor x = from({1, 2}, {2}), handle = x;
  x.set_requires_grad();
  x.set_data(from({3, 4}, {2}));
  EXPECT_EQ(to_vector(handle), (std::vector<double>{3, 4}));
  x.set_data(from({7, 8}, {2}, f16));
  EXPECT_EQ(handle.dtype(), f16);
  EXPECT_TRUE(handle.requires_grad());
  EXPECT_EQ(error([&] { x.set_data(from({1}, {1})); }), "the data must have shape [2], got [1]");
  EXPECT_EQ(error([&] { x.set_data(from({1, 2}, {2}, i32)); }),
            "the data of a tensor that requires a gradient must be floats, got i32");
}

TEST(StateDict, AreFoundByName) {
  const StateDict two = {{"a", from({1}, {})}, {"b.c", from({2}, {})}};
  EXPECT_EQ(two.at("b.c").item(), 2);
  EXPECT_EQ(two.at(0).first, "a");
  EXPECT_EQ(error([&] { two.at("c"); }), "no tensor is named \"c\", only: a, b.c");
  EXPECT_TRUE(two["b.c"].is_same(two[1].second));
  EXPECT_EQ(error([&] { two["c"]; }), "no tensor is named \"c\", only: a, b.c");
}

TEST(StateDict, GoUnderAPrefixAndBack) {
  StateDict all = {{"a", from({1}, {})}};
  all.add("b.", {{"c", from({2}, {})}, {"d", from({3}, {})}});
  EXPECT_EQ(all.at("b.d").item(), 3);
  EXPECT_TRUE(all.contains("b.d") && !all.contains("b"));
  const StateDict b = all.under("b.");
  EXPECT_EQ(b.size(), 2u);
  EXPECT_EQ(b[0].first, "c");
  EXPECT_TRUE(all.under("c").empty());
}

TEST(Warn, TellsTheInnermostGuardEachTextOnce) {
  std::vector<std::string> outer, inner;
  const OnWarning on([&](const std::string& text) { outer.push_back(text); });
  warn("a");
  warn("a");
  {
    const OnWarning within([&](const std::string& text) { inner.push_back(text); });
    warn("a");
    std::thread([] {
      testing::internal::CaptureStderr();
      for (const char* text : {"there", "there"}) warn(text);
    }).join();
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "mixtape: warning: there\n");
  }
  warn("b");
  EXPECT_EQ(outer, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(inner, (std::vector<std::string>{"a"}));
}

}  // namespace core_test
}  // namespace mixtape
