// Unary, binary and moving kernels on every kind of view and dtype, against the same formulas in
// double, one element at a time.

#include "kernels/common/elementwise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/format.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_elementwise_test {

// Views of every kind; uninitialised.
struct Kind {
  const char* name;
  Tensor (*make)(DType);
};
const Kind kinds[] = {
    {"contiguous", [](DType t) { return Tensor({3, 37}, t); }},
    {"whole lanes", [](DType t) { return Tensor({64}, t); }},
    {"one element", [](DType t) { return Tensor({1}, t); }},
    {"scalar", [](DType t) { return Tensor(Shape{}, t); }},
    {"empty", [](DType t) { return Tensor({3, 0, 2}, t); }},
    {"sliced",
     [](DType t) {
       const Tensor whole({20, 70}, t);
       return whole.with_layout(slice(slice(whole.layout(), 0, 1, 18, 2), 1, 3, 60, 3));
     }},
    {"rows",
     [](DType t) {
       const Tensor whole({40, 90}, t);
       return whole.with_layout(slice(whole.layout(), 1, 5, 77));
     }},
    {"transposed",
     [](DType t) {
       const Tensor whole({90, 70}, t);
       return whole.with_layout(transpose(whole.layout(), 0, 1));
     }},
    {"channels last",
     [](DType t) {
       const Tensor whole({2, 5, 7, 3}, t);
       const int order[] = {0, 3, 1, 2};
       return whole.with_layout(permute(whole.layout(), order));
     }},
    {"few channels, last",
     [](DType t) {
       const Tensor whole({3, 19, 37, 2}, t);
       const int order[] = {0, 3, 1, 2};
       return whole.with_layout(permute(whole.layout(), order));
     }},
    {"few channels, first",
     [](DType t) {
       const Tensor whole({3, 2, 19, 37}, t);
       const int order[] = {0, 2, 3, 1};
       return whole.with_layout(permute(whole.layout(), order));
     }},
    {"large", [](DType t) { return Tensor({40001}, t); }},
};
const Kind expanded_kinds[] = {
    {"expanded rows",
     [](DType t) {
       const Tensor row({1, 37}, t);
       return row.with_layout(expand(row.layout(), {50, 37}));
     }},
    {"expanded columns",
     [](DType t) {
       const Tensor column({50, 1}, t);
       return column.with_layout(expand(column.layout(), {50, 37}));
     }},
    {"expanded scalar",
     [](DType t) {
       const Tensor one({1, 1}, t);
       return one.with_layout(expand(one.layout(), {50, 37}));
     }},
    {"many expanded rows",
     [](DType t) {
       const Tensor rows({7, 5}, t);
       return rows.with_layout(expand(transpose(rows.layout(), 0, 1), {480, 5, 7}));
     }},
    {"long expanded rows",
     [](DType t) {
       const Tensor row({1, 4099}, t);
       return row.with_layout(expand(row.layout(), {3, 4099}));
     }},
};

// The ops that take floats.
template <class Ops, class Run>
void for_float_ops(Ops ops, Run run) {
  for_ops(ops, [&]<class F>() {
    if constexpr (!OnlyIntegers<F>) run.template operator()<F>();
  });
}

template <class F>
void for_inputs(F f) {
  for (const Kind& k : kinds) f(k);
  for (const Kind& k : expanded_kinds) f(k);
}

// Deterministic values in [low, high]; integers for integer dtypes. Shared elements are filled
// once.
Tensor fill_in(Tensor t, double low, double high, uint64_t seed) {
  for (int64_t i = 0; i < t.numel(); ++i) {
    const auto place = static_cast<uint64_t>(t.layout().at(i));
    t.set(i, low + (high - low) * Philox::uniform(Philox::bits(seed, place)[0]));
  }
  return t;
}
Tensor numbers(const Kind& kind, DType dtype, double low, double high, uint64_t seed) {
  return fill_in(kind.make(dtype), low, high, seed);
}
// An output of x's shape, dense or with gaps, full of NaN.
Tensor result_like(const Tensor& x, DType dtype, bool gaps) {
  Shape doubled = x.shape();
  if (gaps && doubled.rank > 0) doubled[-1] *= 2;
  Tensor y(doubled, dtype);
  if (gaps && doubled.rank > 0) y = y.with_layout(slice(y.layout(), -1, 0, doubled[-1], 2));
  for (int64_t i = 0; i < y.numel(); ++i) y.set(i, is_float(dtype) ? nan : 1);
  return y;
}

double precision_of(DType t) { return t == f64 ? 1e-13 : t == f32 ? 1e-6 : t == f16 ? 6e-4 : 5e-3; }

template <class Want>
void expect_each(const Tensor& got, double tol, const std::string& what, Want want) {
  for (int64_t i = 0; i < got.numel(); ++i) {
    const double w = want(i), g = got.at(i);
    const bool same = g == w || (std::isnan(g) && std::isnan(w));
    ASSERT_TRUE(same || std::abs(g - w) <= tol * std::max(1.0, std::abs(w)))
        << what << ", element " << i << ": " << g << ", expected " << w;
  }
}

// The scalar arguments of ops that take some.
const Numbers some_numbers{{-0.5, 0.75}};
template <class F, class T, class Use>
auto with_some_numbers(Use use) {
  return with_numbers<F>(some_numbers.value, [&](auto... s) { return use(T(s)...); });
}

TEST(Unary, EveryOpViewAndDtype) {
  for_float_ops(UnaryOps{}, []<class F>() {
    const Domain d = domain_of<F>();
    const auto f = [](double x) -> double {
      return with_some_numbers<F, double>([&](auto... s) { return F::f(x, s...); });
    };
    for_inputs([&](const Kind& kind) {
      for (const auto& dtypes : float_pairs) {
        const DType in = dtypes.first, out = Predicate<F> ? boolean : dtypes.second;
        const Tensor x = numbers(kind, in, d.low, d.high, 1), y = result_like(x, out, false);
        const std::string what =
            std::string(F::info.name) + " " + kind.name + " " + std::string(name(in));
        launch([&](Launch& l) { unary(l, index_in<F>(UnaryOps{}), x, some_numbers, y); });
        expect_each(y, precision_of(out), what, [&](int64_t i) { return f(x.at(i)); });

        if constexpr (FromX<F> || FromY<F>) {
          const bool half = is_half(in);
          const Tensor v = saves_x<F>(half) ? x : y;
          const Tensor dy = numbers(kind, out, -2, 2, 2), dx = result_like(x, in, true);
          launch(
              [&](Launch& l) { unary_grad(l, index_in<F>(UnaryOps{}), v, dy, some_numbers, dx); });
          expect_each(dx, 4 * precision_of(in), what + " backward", [&](int64_t i) {
            return passed<F>(dy.at(i), with_some_numbers<F, double>([&](auto... s) {
                               return half ? derivative<F, true>(v.at(i), s...)
                                           : derivative<F, false>(v.at(i), s...);
                             }));
          });
        }
      }
    });
  });
}

TEST(Unary, Integers) {
  for_ops(UnaryOps{}, []<class F>() {
    if constexpr (TakesIntegers<F>)
      for (const DType t : {i64, i32, u8, boolean}) {
        if (t == boolean && !Predicate<F>) continue;
        for (const Kind& kind : kinds) {
          const Tensor x = numbers(kind, t, t == u8 || t == boolean ? 0 : -6, 7, 3);
          const Tensor y = result_like(x, Predicate<F> ? boolean : t, true);
          launch([&](Launch& l) { unary(l, index_in<F>(UnaryOps{}), x, some_numbers, y); });
          const std::string what =
              std::string(F::info.name) + " " + kind.name + " " + std::string(name(t));
          expect_each(y, 0, what, [&](int64_t i) -> double {
            const Whole v(static_cast<int64_t>(x.at(i)));
            const auto r = with_some_numbers<F, Whole>([&](auto... s) { return F::f(v, s...); });
            if constexpr (Predicate<F>)
              return r;
            else
              return t == u8 ? static_cast<uint8_t>(r.v) : static_cast<double>(r.v);
          });
        }
      }
  });
}

TEST(Unary, ElementsDoNotDependOnPosition) {
  const Tensor x = fill_in(Tensor({100}, f32), -4, 4, 3), whole({100}, f32);
  launch([&](Launch& l) { unary(l, index_in<Gelu>(UnaryOps{}), x, Numbers{}, whole); });
  for (int64_t i = 0; i < 100; ++i) {
    const Tensor part = x.with_layout(slice(x.layout(), 0, i, 100)), y({100 - i}, f32);
    launch([&](Launch& l) { unary(l, index_in<Gelu>(UnaryOps{}), part, Numbers{}, y); });
    for (int64_t k = i; k < 100; ++k) ASSERT_EQ(y.at(k - i), whole.at(k)) << i;
  }
}

TEST(Unary, SpecialValues) {
  const Tensor x = from({nan, inf, -inf, 0, -1}, {5}), y({5}, f32);
  const auto run = [&]<class F>() {
    launch([&](Launch& l) { unary(l, index_in<F>(UnaryOps{}), x, Numbers{}, y); });
    return to_vector(y);
  };
  const Values relu = run.operator()<Relu>();
  EXPECT_TRUE(std::isnan(relu[0]));
  EXPECT_EQ(relu[1], inf);
  EXPECT_EQ(relu[2], 0);
  EXPECT_EQ(Relu::d_from_y(0.0f), 0);
  const Values softplus = run.operator()<Softplus>();
  EXPECT_TRUE(std::isnan(softplus[0]));
  EXPECT_EQ(softplus[1], inf);
  EXPECT_EQ(softplus[2], 0);
  const Values sigmoid = run.operator()<Sigmoid>();
  EXPECT_EQ(sigmoid[1], 1);
  EXPECT_EQ(sigmoid[2], 0);
}

TEST(Unary, InPlace) {
  const Tensor x = fill_in(Tensor({1003}, f32), -2, 2, 4), y = from(to_vector(x), {1003});
  launch([&](Launch& l) { unary(l, index_in<Tanh>(UnaryOps{}), y, Numbers{}, y); });
  expect_each(y, 1e-6, "tanh in place", [&](int64_t i) { return std::tanh(x.at(i)); });
}

TEST(Binary, EveryOpViewAndDtype) {
  for_float_ops(BinaryOps{}, []<class F>() {
    const Domain d = domain_of<F>();
    for_inputs([&](const Kind& kind) {
      for (const auto& dtypes : float_pairs) {
        const DType in = dtypes.first, out = dtypes.second;
        const DType to = Predicate<F> ? boolean : out;
        const Tensor a = numbers(kind, in, d.low, d.high, 5), c = result_like(a, to, true);
        const Tensor b = fill_in(Tensor(a.shape(), in), d.low, d.high, 6);
        const std::string what =
            std::string(F::info.name) + " " + kind.name + " " + std::string(name(in));
        const double tol = Predicate<F> ? 0 : precision_of(to);
        launch([&](Launch& l) { binary(l, index_in<F>(BinaryOps{}), a, b, c); });
        expect_each(c, tol, what, [&](int64_t i) -> double { return F::f(a.at(i), b.at(i)); });
        for (const double s : {2.0, 1.3, 0.7}) {
          const double scalar = in == f64 ? s : static_cast<float>(s);
          for (const bool swapped : {false, true}) {
            if (!takes_scalar<F>(swapped)) continue;
            launch(
                [&](Launch& l) { binary_scalar(l, index_in<F>(BinaryOps{}), a, s, swapped, c); });
            expect_each(c, tol, what + (swapped ? " swapped" : " scalar"),
                        [&](int64_t i) -> double {
                          return swapped ? F::f(scalar, a.at(i)) : F::f(a.at(i), scalar);
                        });
          }
        }
      }
    });
  });
}

// Each dtype of operands, of c and dy, and of the gradients.
struct GradientDtypes {
  DType operands, result, gradients;
};
const GradientDtypes gradient_dtypes[] = {{f64, f64, f64},  {f32, f32, f32},    {f16, f16, f16},
                                          {f16, f32, f32},  {bf16, bf16, bf16}, {bf16, bf16, f32},
                                          {bf16, f32, bf16}};

TEST(Binary, GradientsOfEveryOpViewAndDtype) {
  for_ops(BinaryOps{}, []<class F>() {
    if constexpr (Differentiable<F>) {
      const Domain d = domain_of<F>();
      for_inputs([&](const Kind& kind) {
        for (const auto& [in, out, to] : gradient_dtypes) {
          const Tensor a = numbers(kind, in, d.low, d.high, 5), dy = numbers(kind, out, -2, 2, 17);
          const Tensor b = fill_in(Tensor(a.shape(), in), d.low, d.high, 6),
                       c = fill_in(Tensor(a.shape(), out), 0.2, 2, 18);
          const std::string what =
              std::string(F::info.name) + " " + kind.name + " " + std::string(name(in));
          const double tol = 4 * precision_of(to);
          const auto run = [&, to = to](bool with_da, bool with_db) {
            const Tensor da = result_like(a, to, true), db = result_like(a, to, false);
            launch([&](Launch& l) {
              binary_grad(l, index_in<F>(BinaryOps{}), a, b, c, dy, with_da ? View(da) : View(),
                          with_db ? View(db) : View());
            });
            if (with_da)
              expect_each(da, tol, what + " da", [&](int64_t i) {
                return dy.at(i) * derivative_a<F>(a.at(i), b.at(i), c.at(i));
              });
            if (with_db)
              expect_each(db, tol, what + " db", [&](int64_t i) {
                return dy.at(i) * derivative_b<F>(a.at(i), b.at(i), c.at(i));
              });
          };
          run(true, true);
          run(true, false);
          run(false, true);
          for (const double s : {2.0, 3.0, 1.3}) {
            const double scalar = in == f64 ? s : static_cast<float>(s);
            const Tensor dx = result_like(a, to, true);
            const auto run_scalar = [&](bool swapped) {
              launch([&](Launch& l) {
                binary_scalar_grad(l, index_in<F>(BinaryOps{}), a, s, swapped, c, dy, dx);
              });
            };
            if (takes_scalar<F>(false)) {
              run_scalar(false);
              expect_each(dx, tol, what + " scalar", [&](int64_t i) {
                return dy.at(i) * derivative_a<F>(a.at(i), scalar, c.at(i));
              });
            }
            if (takes_scalar<F>(true)) {
              run_scalar(true);
              expect_each(dx, tol, what + " swapped", [&](int64_t i) {
                return dy.at(i) * derivative_b<F>(scalar, a.at(i), c.at(i));
              });
            }
          }
        }
      });
    }
  });
}

TEST(Binary, GradientsDoNotReadWhatIsAbsent) {
  for (const GradientDtypes& t : gradient_dtypes) {
    const Tensor b = fill_in(Tensor({37}, t.operands), -2, 2, 5),
                 dy = fill_in(Tensor({37}, t.result), -2, 2, 6), da({37}, t.gradients);
    launch([&](Launch& l) {
      binary_grad(l, index_in<Mul>(BinaryOps{}), View(), b, View(), dy, da, View());
    });
    expect_each(da, precision_of(t.gradients), "mul",
                [&](int64_t i) { return dy.at(i) * b.at(i); });
    launch([&](Launch& l) {
      binary_grad(l, index_in<Sub>(BinaryOps{}), View(), View(), View(), dy, View(), da);
    });
    expect_each(da, precision_of(t.gradients), "sub", [&](int64_t i) { return -dy.at(i); });
    launch([&](Launch& l) {
      binary_scalar_grad(l, index_in<Mul>(BinaryOps{}), View(), 1.5, false, View(), dy, da);
    });
    expect_each(da, precision_of(t.gradients), "number", [&](int64_t i) { return dy.at(i) * 1.5; });
  }
}

TEST(Binary, Integers) {
  for_ops(BinaryOps{}, []<class F>() {
    if constexpr (TakesIntegers<F>)
      for (const DType t : {i64, i32, u8, boolean}) {
        if (t == boolean && !Predicate<F>) continue;
        for (const Kind& kind : kinds) {
          const DType to = Predicate<F> ? boolean : t;
          const double low = t == u8 || t == boolean ? 0 : -6;
          const Tensor a = numbers(kind, t, low, 7, 7),
                       b = fill_in(Tensor(a.shape(), t), low, 7, 8);
          const Tensor c = result_like(a, to, false);
          const std::string what =
              std::string(F::info.name) + " " + kind.name + " " + std::string(name(t));
          const auto want = [&](int64_t x, int64_t y) -> double {
            const auto r = F::f(Whole(x), Whole(y));
            if constexpr (Predicate<F>)
              return r;
            else
              return t == u8    ? static_cast<uint8_t>(r.v)
                     : t == i32 ? static_cast<int32_t>(r.v)
                                : static_cast<double>(r.v);
          };
          const auto at = [](const Tensor& x, int64_t i) { return static_cast<int64_t>(x.at(i)); };
          launch([&](Launch& l) { binary(l, index_in<F>(BinaryOps{}), a, b, c); });
          expect_each(c, 0, what, [&](int64_t i) { return want(at(a, i), at(b, i)); });
          if (!takes_scalar<F>(false)) continue;
          launch([&](Launch& l) { binary_scalar(l, index_in<F>(BinaryOps{}), a, 3, false, c); });
          expect_each(c, 0, what + " scalar", [&](int64_t i) { return want(at(a, i), 3); });
        }
      }
  });
}

TEST(Binary, IntegersWrapAndNeverTrap) {
  const auto low = std::numeric_limits<int64_t>::min();
  EXPECT_EQ((Whole(low) / Whole(-1)).v, low);
  EXPECT_EQ((Whole(7) / Whole(0)).v, 0);
  EXPECT_EQ((Whole(-7) / Whole(2)).v, -3);
  EXPECT_EQ(fmod(Whole(low), Whole(-1)).v, 0);
  EXPECT_EQ(fmod(Whole(7), Whole(0)).v, 0);
  EXPECT_EQ(Remainder::f(Whole(-7), Whole(3)).v, 2);
  EXPECT_EQ(Remainder::f(Whole(7), Whole(-3)).v, -2);
  EXPECT_EQ(abs(Whole(low)).v, low);
  EXPECT_EQ((Whole(low) - Whole(1)).v, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(pow(Whole(-3), Whole(3)).v, -27);
  EXPECT_EQ(pow(Whole(2), Whole(-1)).v, 0);
  EXPECT_EQ(pow(Whole(-1), Whole(-3)).v, -1);
}

TEST(Binary, IntegersCompareWithFractions) {
  const Tensor a = from({2, 3}, {2}, i64), c({2}, boolean);
  launch([&](Launch& l) { binary_scalar(l, index_in<Less>(BinaryOps{}), a, 2.5, false, c); });
  EXPECT_EQ(to_vector(c), (Values{1, 0}));
  launch([&](Launch& l) { binary_scalar(l, index_in<Equal>(BinaryOps{}), a, 2.5, false, c); });
  EXPECT_EQ(to_vector(c), (Values{0, 0}));
}

TEST(Binary, NanWinsAndTiesSplit) {
  const Tensor a = from({nan, 1, 2}, {3}), b = from({1, nan, 2}, {3}), c({3}, f32);
  for (const int op : {index_in<Maximum>(BinaryOps{}), index_in<Minimum>(BinaryOps{})}) {
    launch([&](Launch& l) { binary(l, op, a, b, c); });
    EXPECT_TRUE(std::isnan(c.at(0)) && std::isnan(c.at(1)));
    EXPECT_EQ(c.at(2), 2);
  }
  EXPECT_EQ(Maximum::da(2.0, 2.0, 2.0), 0.5);
  EXPECT_EQ(Minimum::db(2.0, 3.0, 2.0), 0);
  for (const auto& [x, y] : {std::pair{nan, 1.0}, {1.0, nan}}) {  // as in PyTorch, to both
    EXPECT_EQ(Maximum::da(x, y, nan), 1);
    EXPECT_EQ(Maximum::db(x, y, nan), 1);
    EXPECT_EQ(Minimum::da(x, y, nan), 1);
    EXPECT_EQ(Minimum::db(x, y, nan), 1);
  }
  EXPECT_EQ(Pow::gradient_a(1.0, 0.0, 0.0), 0);
  EXPECT_EQ(Pow::gradient_b(1.0, 0.0, 2.0), 0);
}

TEST(PlusScaled, EveryOpViewAndDtype) {
  for_ops(OpList<Sub, Mul, Div>{}, []<class F>() {
    for_inputs([&](const Kind& kind) {
      for (const auto& [in, out] : float_pairs) {
        const Tensor x = numbers(kind, in, -2, 2, 20), y = result_like(x, out, true);
        const Tensor a = fill_in(Tensor(x.shape(), in), -2, 2, 21),
                     b = fill_in(Tensor(x.shape(), in), 0.3, 2, 22);
        launch([&](Launch& l) { plus_scaled(l, index_in<F>(BinaryOps{}), x, a, b, -1.5, y); });
        expect_each(y, 2 * precision_of(out), kind.name,
                    [&](int64_t i) { return x.at(i) - 1.5 * F::f(a.at(i), b.at(i)); });
      }
      if (!TakesIntegers<F>) return;
      const Tensor x = numbers(kind, i64, -9, 9, 23), y = result_like(x, i64, true);
      launch([&](Launch& l) { plus_scaled(l, index_in<F>(BinaryOps{}), x, x, x, 3, y); });
      expect_each(y, 0, kind.name, [&](int64_t i) {
        const Whole v(static_cast<int64_t>(x.at(i)));
        return static_cast<double>((v + Whole(3) * F::f(v, v)).v);
      });
    });
  });
}

TEST(Where, EveryDtype) {
  for (const DType t : all_dtypes) {
    for_inputs([&](const Kind& kind) {
      const Tensor a = numbers(kind, t, 0, 9, 9), b = fill_in(Tensor(a.shape(), t), 0, 9, 10);
      const Tensor condition = fill_in(Tensor(a.shape(), f32), -1, 1, 11),
                   c = result_like(a, t, true);
      const Tensor chosen(a.shape(), boolean);
      for (int64_t i = 0; i < chosen.numel(); ++i) chosen.set(i, condition.at(i) > 0);
      launch([&](Launch& l) { where(l, chosen, a, b, c); });
      expect_each(c, 0, kind.name,
                  [&](int64_t i) { return chosen.at(i) != 0 ? a.at(i) : b.at(i); });
    });
  }
}

TEST(Convert, EveryPairAndView) {
  for (const DType in : all_dtypes) {
    for (const DType out : all_dtypes) {
      for_inputs([&](const Kind& kind) {
        const Tensor x = numbers(kind, in, in == u8 ? 0 : -20, 20, 12);
        for (const bool gaps : {false, true}) {
          const Tensor y = result_like(x, out, gaps);
          launch([&](Launch& l) { convert(l, x, y); });
          const std::string what =
              std::string(name(in)) + " to " + std::string(name(out)) + " " + kind.name;
          expect_each(y, 0, what, [&](int64_t i) {
            return visit(out, [&]<class T>() {
              return static_cast<double>(is_float(in)
                                             ? convert_to<T>(x.at(i))
                                             : convert_to<T>(static_cast<int64_t>(x.at(i))));
            });
          });
        }
      });
    }
  }
}

TEST(Convert, EdgesOfEachType) {
  const auto converted = [](const Values& v, DType in, DType out) {
    const Tensor x = from(v, {static_cast<int64_t>(v.size())}, in), y(x.shape(), out);
    launch([&](Launch& l) { convert(l, x, y); });
    return to_vector(y);
  };
  EXPECT_EQ(converted({nan, inf, -inf, 300, -1, 2.9, -2.9}, f32, u8),
            (Values{0, 255, 0, 255, 0, 2, 0}));
  EXPECT_EQ(converted({nan, 1e30, -1e30, -2.9}, f32, i32),
            (Values{0, 2147483647.0, -2147483648.0, -2}));
  EXPECT_EQ(converted({inf, -inf}, f64, i64), (Values{0x1p63, -0x1p63}));
  EXPECT_EQ(converted({0x1p51 - 0.5, 0.5 - 0x1p51, 0.75, -0.75, 1.5, -2.5, 3, -0.0}, f64, i64),
            (Values{0x1p51 - 1, 1 - 0x1p51, 0, 0, 1, -2, 3, 0}));
  EXPECT_EQ(converted({0x1p51, -0x1p51 - 0.5, 2.9, nan, 0x1p53 + 2, 1e30, -2.9, 0}, f64, i64),
            (Values{0x1p51, -0x1p51, 2, 0, 0x1p53 + 2, 0x1p63, -2, 0}));
  EXPECT_EQ(converted({nan, 0, -0.0, 0.1}, f32, boolean), (Values{1, 0, 0, 1}));
  EXPECT_EQ(converted({1 + 0x1p-11 + 0x1p-40, 1e6, 0x1p-25}, f64, f16),
            (Values{1 + 0x1p-10, inf, 0}));
  EXPECT_EQ(converted({(1 << 24) + 1, 65520}, i64, f16), (Values{inf, inf}));
  EXPECT_TRUE(std::isnan(converted({nan}, f32, bf16)[0]));
  // A single rounding, even of values that a double cannot hold: just above half goes up, just
  // below down.
  const int64_t half = (int64_t{1} << 62) + (int64_t{1} << 54);
  for (const int64_t sign : {1, -1})
    for (const int64_t beside : {-1, 0, 1}) {
      const Tensor x({1}, i64), y({1}, bf16);
      *x.data<int64_t>() = sign * (half + beside);
      launch([&](Launch& l) { convert(l, x, y); });
      EXPECT_EQ(y.at(0), double(sign) * (0x1p62 + (beside > 0 ? 0x1p55 : 0))) << beside;
    }
}

TEST(Convert, TransposedCopies) {
  for (const DType t : {f64, f32, f16, u8}) {
    for (const auto& [rows, columns] :
         {std::pair<int64_t, int64_t>{70, 90}, {64, 128}, {8, 1000}, {1001, 9}}) {
      const Tensor x = fill_in(Tensor({3, rows, columns}, t), 0, 200, 13);
      const Tensor xt = x.with_layout(transpose(x.layout(), 1, 2));
      const Tensor y(xt.shape(), t);
      launch([&](Launch& l) { convert(l, xt, y); });
      expect_each(y, 0, "batch of transposes", [&](int64_t i) { return xt.at(i); });
    }
  }
}

// Sizes around those of vectors and transposed tiles, between layouts of every kind: permuted,
// expanded, reversed, with gaps; into dense memory, and into part of it, whose rest must stay.
TEST(Convert, CopiesOfSizesAroundVectors) {
  const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  const auto check = [](const Tensor& x, DType t, const std::string& what) {
    const Shape& n = x.shape();
    const Tensor dense(n, t);
    Shape around = n;
    for (int d = 0; d < n.rank; ++d) around[d] = 2 * n[d] + 1;
    for (const int64_t step : {1, 2}) {
      const Tensor whole = filled(around, t, 7);
      Layout part = whole.layout();
      for (int d = 0; d < n.rank; ++d)
        part = slice(part, d, 1, d == n.rank - 1 ? 1 + step * n[d] : 1 + n[d],
                     d == n.rank - 1 ? step : 1);
      const Tensor y = whole.with_layout(part);
      launch([&](Launch& l) { convert(l, x, y); });
      expect_each(y, 0, what + " into a part", [&](int64_t i) { return x.at(i); });
      double beside = 0, inside = 0;
      for (int64_t i = 0; i < whole.numel(); ++i) beside += whole.at(i) == 7;
      for (int64_t i = 0; i < y.numel(); ++i) inside += y.at(i) == 7;
      EXPECT_EQ(beside - inside, double(whole.numel() - y.numel())) << what;
    }
    launch([&](Launch& l) { convert(l, x, dense); });
    expect_each(dense, 0, what, [&](int64_t i) { return x.at(i); });
  };
  for (const DType t : {f64, f32, f16, u8})
    for (const int64_t a : {1, 2, 3, 4, 5, 17})
      for (const int64_t b : {0, 1, 2, 3, 7, 16, 17, 35, 67, 260}) {
        for (const auto& order : orders) {
          const int64_t sizes[] = {2, a, b};
          const Tensor made({sizes[order[0]], sizes[order[1]], sizes[order[2]]}, t);
          int inverse[3];
          for (int d = 0; d < 3; ++d) inverse[order[d]] = d;
          const Tensor x = fill_in(made, 10, 200, 13).with_layout(permute(made.layout(), inverse));
          check(x, t, fmt::format("{} in order {}{}{}", x.shape(), order[0], order[1], order[2]));
        }
        const Tensor x = fill_in(Tensor({2, a, b}, t), 10, 200, 13);
        for (int d = 0; d < 3; ++d) {
          check(x.with_layout(flip(x.layout(), d)), t, fmt::format("{} backwards", x.shape()));
          const Layout more = expand(unsqueeze(x.layout(), d), [&] {
            Shape n = unsqueeze(x.layout(), d).shape;
            n[d] = 3;
            return n;
          }());
          check(x.with_layout(more), t, fmt::format("{} repeated", x.shape()));
        }
      }
}

TEST(Fill, EveryDtypeAndView) {
  for (const DType t : all_dtypes) {
    for (const Kind& kind : kinds) {
      const Tensor y = kind.make(t);
      launch([&](Launch& l) { fill(l, 2.6, y); });
      const double want = t == boolean ? 1
                          : t == f64   ? 2.6
                          : t == f32   ? double(2.6f)
                          : t == f16   ? 2.599609375
                          : t == bf16  ? 2.59375
                                       : 2;
      expect_each(y, 0, kind.name, [&](int64_t) { return want; });
    }
  }
}

TEST(Arange, CountsInDouble) {
  const Tensor y({20000}, f32), n({5}, i64);
  launch([&](Launch& l) { arange(l, 1, 0.1, y); });
  expect_each(y, 0, "f32",
              [](int64_t i) { return static_cast<float>(1 + static_cast<double>(i) * 0.1); });
  launch([&](Launch& l) { arange(l, 3, -2, n); });
  EXPECT_EQ(to_vector(n), (Values{3, 1, -1, -3, -5}));
}

TEST(Linspace, MeetsBothEnds) {
  const Tensor y({20001}, f64), one({1}, f32), n({4}, i32);
  launch([&](Launch& l) { linspace(l, 0.1, 0.7, y); });
  expect_each(y, 1e-15, "f64",
              [](int64_t i) { return 0.1 + static_cast<double>(i) * 0.6 / 20000; });
  EXPECT_EQ(y.at(0), 0.1);
  EXPECT_EQ(y.at(20000), 0.7);
  launch([&](Launch& l) {
    linspace(l, 5, 9, one);
    linspace(l, 6, -3, n);
  });
  EXPECT_EQ(one.at(0), 5);
  EXPECT_EQ(to_vector(n), (Values{6, 3, 0, -3}));
}

TEST(Accumulate, NarrowIntoWideAndIntegers) {
  const std::pair<DType, DType> pairs[] = {{f64, f64},   {f32, f32}, {f16, f32}, {bf16, f32},
                                           {bf16, bf16}, {f16, f16}, {i64, i64}, {i32, i32}};
  for (const auto& dtypes : pairs) {
    const DType in = dtypes.first, out = dtypes.second;
    for_inputs([&](const Kind& kind) {
      const Tensor x = numbers(kind, in, -3, 3, 14), y = result_like(x, out, true);
      fill_in(y, -3, 3, 15);
      const Values before = to_vector(y);
      launch([&](Launch& l) { accumulate(l, x, y); });
      expect_each(y, precision_of(out), kind.name,
                  [&](int64_t i) { return before[static_cast<size_t>(i)] + x.at(i); });
    });
  }
}

TEST(Convert, CopiesBetweenAnyLayouts) {
  const Layout l(Shape{7, 900, 5});
  const Layout layouts[] = {l, flip(flip(l, 0), 2), slice(l, 1, 100, 800, 7),
                            permute(l, std::array{2, 0, 1}),
                            slice(permute(l, std::array{1, 2, 0}), 0, 0, 100)};
  for (const DType t : {f64, f16, boolean})
    for (const Layout& layout : layouts)
      for (const bool backwards : {false, true}) {
        const Tensor x = filled(l.shape, t, 0).with_layout(layout);
        for (int64_t i = 0; i < x.numel(); ++i) x.set(i, t == boolean ? i % 3 == 0 : i % 50);
        const Tensor whole = filled(x.shape(), t, 0);
        const Tensor y = backwards ? whole.with_layout(flip(whole.layout(), 0)) : whole;
        launch([&](Launch& launched) { convert(launched, x, y); });
        ASSERT_EQ(to_vector(y), to_vector(x)) << name(t);
      }
}

#if defined(__x86_64__)
TEST(Elementwise, KeepsSubnormalsOnAThreadThatFlushesThem) {
  constexpr unsigned fast = 0xe040;  // MXCSR: flush to zero, round to zero, denormals are zero
  for (const int64_t n : {1, 40'000}) {
    const Tensor x({n}, f32), y({n}, f32), one({1}, f32);
    const unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | fast);
    launch([&](Launch& l) {
      kernels::fill(l, 1e-30, x);
      binary_scalar(l, index_in<Mul>(BinaryOps{}), x, 1e-10, false, y);
    });
    one.set(0, 1e-40);
    const double element = y.at(n - 1);
    const std::vector<float> all = to_vector<float>(y);
    const unsigned after = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode);
    EXPECT_EQ(after & fast, fast);
    EXPECT_EQ(element, double{1e-40F});
    EXPECT_EQ(one.at(0), double{1e-40F});
    EXPECT_EQ(all, std::vector<float>(size_t(n), 1e-40F));
  }
}
#endif

TEST(Elementwise, SameBitsForAnyThreads) {
  const Tensor x = fill_in(Tensor({300, 301}, f32), -3, 3, 16);
  const Tensor xt = x.with_layout(transpose(x.layout(), 0, 1));
  expect_same_for_any_threads([&] {
    const Tensor y({300, 301}, f32), z({301, 300}, f32), h({300, 301}, bf16);
    const Tensor da({301, 300}, f32), db({301, 300}, f32);
    launch([&](Launch& l) {
      binary_grad(l, index_in<Div>(BinaryOps{}), xt, xt, xt, xt, da, db);
      unary(l, index_in<Gelu>(UnaryOps{}), x, Numbers{}, y);
      binary(l, index_in<Mul>(BinaryOps{}), xt, xt, z);
      convert(l, x, h);
    });
    return std::vector{y, z, h, da, db};
  });
}

}  // namespace kernels_elementwise_test
}  // namespace mixtape::kernels
