// Elementwise CUDA kernels under the emulator, compared with the CPU; and their plans of memory
// access.

#include <fmt/format.h>

#include "core/format.h"
#include "kernels/common/cells.h"
#include "kernels/common/losses.h"
#include "kernels/cuda/elementwise/elementwise_plan.h"
#include "tests/support/kernel_compare.h"

namespace mixtape::kernels {
using namespace internal;
namespace kernels_cuda_elementwise_test {

// --- plans ---

// The group size of a plan for an output and inputs of one dtype, and the operands that are packed.
struct Case {
  const char* name;
  DType dtype;
  std::vector<Tensor> views;  // the output first
  int group;
  std::vector<bool> packed = {};
};
Tensor expanded(const Shape& from, const Shape& to, DType t) {
  const Tensor x = filled(from, t, 1);
  return x.with_layout(expand(x.layout(), to));
}
Tensor shifted(int64_t n, int64_t by, DType t) {
  return filled({n + by}, t, 1).with_layout(Layout({n}).at_offset(by));
}
Tensor transposed(int64_t m, int64_t n, DType t) {
  const Tensor x = filled({n, m}, t, 1);
  return x.with_layout(transpose(x.layout(), 0, 1));
}

TEST(MapPlan, TakesGroupsWhereItCan) {
  const auto dense = [](const Shape& s, DType t) { return filled(s, t, 1); };
  const Case cases[] = {
      {"dense", f32, {dense({1000}, f32), dense({1000}, f32)}, 4, {true, true}},
      {"dense", bf16, {dense({1000}, bf16), dense({1000}, bf16)}, 8, {true, true}},
      {"dense, wider output", f16, {dense({1000}, f32), dense({1000}, f16)}, 4, {true, true}},
      {"with an end", f32, {dense({1003}, f32), dense({1003}, f32)}, 4, {true, true}},
      {"bias", bf16, {dense({9, 64}, bf16), expanded({64}, {9, 64}, bf16)}, 8, {true, true}},
      {"bias, short rows", bf16, {dense({9, 12}, bf16), expanded({12}, {9, 12}, bf16)}, 4},
      {"bias, odd rows", f32, {dense({9, 31}, f32), expanded({31}, {9, 31}, f32)}, 1},
      {"a number", f16, {dense({9, 31}, f16), expanded({1}, {9, 31}, f16)}, 8, {true, false}},
      {"columns", f32, {dense({9, 32}, f32), expanded({9, 1}, {9, 32}, f32)}, 4, {true, false}},
      {"rows an odd number apart",
       f32,
       {dense({9, 32}, f32), filled({9, 33}, f32, 1).with_layout(Layout({9, 32}, {33, 1}))},
       1},
      {"off by one", f32, {dense({99}, f32), shifted(99, 1, f32)}, 1},
      {"off by four", f16, {dense({99}, f16), shifted(99, 4, f16)}, 4},
      {"both transposed", f32, {transposed(9, 7, f32), transposed(9, 7, f32)}, 4, {true, true}},
      {"one transposed", f32, {dense({8, 16}, f32), transposed(8, 16, f32)}, 1},
  };
  for (const Case& c : cases) {
    const View views[] = {c.views[0], c.views[1]};
    const auto plan = cuda::plan_map<2>({&views[0], &views[1]}, 4);
    EXPECT_EQ(plan.group, c.group) << c.name;
    EXPECT_EQ(plan.count, c.views[0].numel()) << c.name;
    for (size_t k = 0; k < c.packed.size(); ++k)
      EXPECT_EQ(plan.operand[k].packed, c.packed[k]) << c.name << ", operand " << k;
  }
}
TEST(MapPlan, FindsEveryElement) {
  const Tensor x = filled({6, 7, 8, 9}, f32, 1);
  const int order[] = {2, 0, 3, 1};
  const Layout a = permute(x.layout(), order), b(a.shape);
  const cuda::Walk<2> walk = cuda::walk_of<2>({&a, &b});
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t at[2];
    walk.find(i, at);
    ASSERT_EQ(at[0], a.at(i)) << i;
    ASSERT_EQ(at[1], i);
  }
}
TEST(MapPlan, DividesByAnySize) {
  for (const int64_t by :
       {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{7}, int64_t{641}, int64_t{4096},
        int64_t{0x7fffffff}, int64_t{1} << 40, (int64_t{1} << 62) + 1})
    for (const int64_t i : {int64_t{0}, by - 1, by, by + 1, 7 * (by / 5), int64_t{1} << 32,
                            (int64_t{1} << 62) + 12345, std::numeric_limits<int64_t>::max()})
      EXPECT_EQ(cuda::Divisor(by).quotient(i), i / by) << i << " / " << by;
}

// --- kernels ---

// Within `tol` of each expected number.
void expect_near(const Tensor& got, const Tensor& want, double tol, const std::string& what) {
  const Values g = to_vector(got), w = to_vector(want);
  ASSERT_EQ(g.size(), w.size()) << what;
  for (size_t i = 0; i < g.size(); ++i) {
    const bool same = g[i] == w[i] || (std::isnan(g[i]) && std::isnan(w[i]));
    ASSERT_TRUE(same || std::abs(g[i] - w[i]) <= tol * std::max(1.0, std::abs(w[i])))
        << what << ", element " << i << ": " << g[i] << ", expected " << w[i];
  }
}
double tolerance_of(DType t) { return is_float(t) ? tolerance(t) : 0; }

// Runs a kernel into an output of each device and compares them.
template <class Cuda, class Cpu>
void compare(const Tensor& got, const Tensor& want, double tol, const std::string& what, Cuda cuda,
             Cpu cpu) {
  launch([&](Launch& l) { cuda(l, got); });
  launch([&](Launch& l) { cpu(l, want); });
  expect_near(got, want, tol, what);
}

const Numbers some_numbers{{-0.5, 0.75}};

// Numbers of an op's domain, and special values.
template <class F>
Tensor numbers(DType t, int64_t n, uint64_t seed) {
  const Domain domain = domain_of<F>();
  Tensor x = random({n}, t, seed, t == u8 ? 0 : domain.low, domain.high);
  if (is_float(t) && n > 8) {
    const double odd[] = {0, -0.0, inf, -inf, nan, 1, -1};
    for (int i = 0; i < 7; ++i) x.set(i + 1, odd[i]);
  }
  return x;
}
// The dtypes that an op takes, each with those that it returns.
template <class F>
std::vector<std::pair<DType, DType>> pairs_of() {
  std::vector<std::pair<DType, DType>> pairs;
  if (Predicate<F>) {
    for (const DType t : {f64, f32, f16, bf16, i64, i32, u8, boolean})
      pairs.emplace_back(t, boolean);
    return pairs;
  }
  if (!OnlyIntegers<F>) pairs.assign(std::begin(float_pairs), std::end(float_pairs));
  if (TakesIntegers<F>)
    for (const DType t : {i64, i32, u8}) pairs.emplace_back(t, t);
  return pairs;
}

TEST(CudaUnary, EveryOpAndDtype) {
  for_ops(UnaryOps{}, []<class F>() {
    const int op = index_in<F>(UnaryOps{});
    for (const auto& [in, out] : pairs_of<F>()) {
      const Tensor x = numbers<F>(in, 291, 5);
      compare(
          filled({291}, out, 1), filled({291}, out, 1), tolerance_of(out),
          fmt::format("{}, {} to {}", F::info.name, name(in), name(out)),
          [&](Launch& l, const Tensor& y) { cuda::unary(l, op, x, some_numbers, y); },
          [&](Launch& l, const Tensor& y) { on_cpu(unary)(l, op, x, some_numbers, y); });
    }
  });
}
TEST(CudaUnary, EveryGradient) {
  for_ops(UnaryOps{}, []<class F>() {
    if constexpr (FromX<F> || FromY<F>) {
      const int op = index_in<F>(UnaryOps{});
      for (const auto& [in, out] : float_pairs) {
        const Tensor v = numbers<F>(saves_x<F>(is_half(in)) ? in : out, 291, 6),
                     dy = random({291}, out, 7);
        compare(
            output({291}, in), output({291}, in), tolerance(in),
            fmt::format("{}, {} to {}", F::info.name, name(in), name(out)),
            [&](Launch& l, const Tensor& dx) { cuda::unary_grad(l, op, v, dy, some_numbers, dx); },
            [&](Launch& l, const Tensor& dx) {
              on_cpu(unary_grad)(l, op, v, dy, some_numbers, dx);
            });
      }
    }
  });
}

// Their exponents are squares, whose rounding errors would multiply those of results.
TEST(CudaUnary, TailsAreAsExactAsTheMiddle) {
  const Tensor x = random({999}, f32, 8, -9, -2), dy = filled({999}, f32, 1);
  const Tensor wide_x = output({999}, f64), wide_dy = filled({999}, f64, 1);
  for (int64_t i = 0; i < x.numel(); ++i) wide_x.set(i, x.at(i));
  const auto expect = [&](std::string_view what, const auto& kernel) {
    const Tensor got = output({999}, f32), want = output({999}, f64);
    launch([&](Launch& l) { kernel(l, x, dy, got); });
    launch([&](Launch& l) { kernel(l, wide_x, wide_dy, want); });
    for (int64_t i = 0; i < x.numel(); ++i)
      ASSERT_NEAR(got.at(i), want.at(i), 8e-7 * std::abs(want.at(i))) << what << " at " << x.at(i);
  };
  for_ops(OpList<Gelu, GeluTanh, Silu, Mish, Erf, Erfc>{}, [&]<class F>() {
    const int op = index_in<F>(UnaryOps{});
    expect(F::info.name, [&](Launch& l, const Tensor& in, const Tensor&, const Tensor& y) {
      cuda::unary(l, op, in, some_numbers, y);
    });
    expect("the slope", [&](Launch& l, const Tensor& in, const Tensor& slopes, const Tensor& dx) {
      cuda::unary_grad(l, op, in, slopes, some_numbers, dx);
    });
  });
}

// A tensor, and its elements in views of every kind, of one shape.
std::vector<Tensor> ways(const Tensor& x) {
  const int64_t m = x.size(0), n = x.size(1);
  const auto placed = [&](const Shape& room, const Layout& layout) {
    const Tensor view = filled(room, x.dtype(), 1).with_layout(layout);
    for (int64_t i = 0; i < x.numel(); ++i) view.set(i, x.at(i));
    return view;
  };
  return {x,
          placed({n, m}, Layout({m, n}, {1, m})),
          placed({m * n + 1}, Layout({m, n}, {n, 1}, 1)),
          placed({m, 2 * n}, Layout({m, n}, {2 * n, 2})),
          placed({m, n + 1}, Layout({m, n}, {n + 1, 1})),
          placed({m, n + 8}, Layout({m, n}, {n + 8, 1}, 8))};
}
// The same, and expanded views, for inputs.
std::vector<Tensor> input_ways(DType t, int64_t m, int64_t n, uint64_t seed) {
  std::vector<Tensor> all = ways(random({m, n}, t, seed, t == u8 ? 0 : -9, 9));
  for (const Shape& from : {Shape{1, n}, Shape{m, 1}, Shape{1, 1}}) {
    const Tensor x = random(from, t, seed, t == u8 ? 0 : -9, 9);
    all.push_back(x.with_layout(expand(x.layout(), {m, n})));
  }
  return all;
}

TEST(CudaBinary, EveryView) {
  const int op = index_in<Sub>(BinaryOps{});
  for (const DType t : {f64, f32, bf16, i64, i32, u8})
    for (const int64_t n : {33, 40})
      for (const Tensor& a : input_ways(t, 19, n, 1))
        for (const Tensor& b : input_ways(t, 19, n, 2))
          for (const Tensor& y : ways(filled({19, n}, t, 1)))
            compare(
                y, filled({19, n}, t, 1), 0,
                fmt::format("{}: {} - {} to {}", name(t), a.layout().strides, b.layout().strides,
                            y.layout().strides),
                [&](Launch& l, const Tensor& c) { cuda::binary(l, op, a, b, c); },
                [&](Launch& l, const Tensor& c) { on_cpu(binary)(l, op, a, b, c); });
}
TEST(CudaBinary, EverySize) {
  const int op = index_in<Add>(BinaryOps{});
  for (const DType t : {f64, f32, f16, u8})
    for (const int64_t n : {0, 1, 2, 7, 31, 32, 33, 255, 256, 257, 2047, 2048, 2049, 20001})
      for (const int64_t offset : {0, 1, 4}) {
        const Tensor a = random({n}, t, 1, 0, 9),
                     b = random({n + offset}, t, 2, 0, 9)
                             .with_layout(Layout({n}).at_offset(offset)),
                     y = filled({n + 1}, t, 1);
        compare(
            y.with_layout(Layout({n}, {1})), filled({n}, t, 1), 0,
            fmt::format("{} [{}] from {}", name(t), n, offset),
            [&](Launch& l, const Tensor& c) { cuda::binary(l, op, a, b, c); },
            [&](Launch& l, const Tensor& c) { on_cpu(binary)(l, op, a, b, c); });
        EXPECT_EQ(y.at(n), 1) << "what lies behind the output";
      }
}
TEST(CudaBinary, EveryOpAndDtype) {
  for_ops(BinaryOps{}, []<class F>() {
    const int op = index_in<F>(BinaryOps{});
    for (const auto& [in, out] : pairs_of<F>()) {
      const Tensor a = numbers<F>(in, 291, 5);
      Tensor b = numbers<F>(in, 291, 6);
      for (int i = 0; i < 150; ++i) b.set(i, i < 7 ? b.at(i) : a.at(i % 150 + i % 3));
      const std::string what = fmt::format("{}, {} to {}", F::info.name, name(in), name(out));
      compare(
          filled({291}, out, 1), filled({291}, out, 1), tolerance_of(out), what,
          [&](Launch& l, const Tensor& c) { cuda::binary(l, op, a, b, c); },
          [&](Launch& l, const Tensor& c) { on_cpu(binary)(l, op, a, b, c); });
      for (const double scalar : {2.0, 3.0, 0.0, -1.0, 2.5, 0.1, inf, nan})
        for (const bool swapped : {false, true}) {
          if (!takes_scalar<F>(swapped)) continue;
          compare(
              filled({291}, out, 1), filled({291}, out, 1), tolerance_of(out),
              fmt::format("{} and {}, swapped: {}", what, scalar, swapped),
              [&](Launch& l, const Tensor& c) {
                cuda::binary_scalar(l, op, a, scalar, swapped, c);
              },
              [&](Launch& l, const Tensor& c) {
                on_cpu(binary_scalar)(l, op, a, scalar, swapped, c);
              });
        }
    }
  });
}
TEST(CudaBinary, EveryGradient) {
  for_ops(BinaryOps{}, []<class F>() {
    if constexpr (Differentiable<F>) {
      const int op = index_in<F>(BinaryOps{});
      for (const auto& [in, out] : float_pairs)
        for (const DType gradient : {in, wide(in)}) {
          const Tensor a = numbers<F>(in, 291, 5), b = numbers<F>(in, 291, 6),
                       c = numbers<F>(out, 291, 7), dy = random({291}, out, 8);
          const std::string what =
              fmt::format("{}, {} to {}, {}", F::info.name, name(in), name(out), name(gradient));
          for (const int wanted : {1, 2, 3}) {
            const auto made = [&](int which) {
              return wanted & which ? output({291}, gradient) : Tensor();
            };
            const auto view = [](const Tensor& t) { return t ? View(t) : View(); };
            const Tensor da = made(1), db = made(2), want_a = made(1), want_b = made(2);
            launch([&](Launch& l) { cuda::binary_grad(l, op, a, b, c, dy, view(da), view(db)); });
            launch([&](Launch& l) {
              on_cpu(binary_grad)(l, op, a, b, c, dy, view(want_a), view(want_b));
            });
            if (da) expect_near(da, want_a, tolerance(gradient), what + ", a");
            if (db) expect_near(db, want_b, tolerance(gradient), what + ", b");
          }
          for (const double scalar : {2.0, 3.0, 0.5})
            for (const bool swapped : {false, true}) {
              if (!takes_scalar<F>(swapped)) continue;
              compare(
                  output({291}, gradient), output({291}, gradient), tolerance(gradient),
                  fmt::format("{} and {}, swapped: {}", what, scalar, swapped),
                  [&](Launch& l, const Tensor& da) {
                    cuda::binary_scalar_grad(l, op, a, scalar, swapped, c, dy, da);
                  },
                  [&](Launch& l, const Tensor& da) {
                    on_cpu(binary_scalar_grad)(l, op, a, scalar, swapped, c, dy, da);
                  });
            }
        }
    }
  });
}
TEST(CudaBinary, GradientsReadWhatIsThere) {
  const Tensor dy = random({99}, f16, 1), da = output({99}, f16), db = output({99}, f16);
  launch([&](Launch& l) {
    cuda::binary_grad(l, index_in<Sub>(BinaryOps{}), View{}, View{}, View{}, dy, da, db);
  });
  for (int64_t i = 0; i < 99; ++i) {
    EXPECT_EQ(da.at(i), dy.at(i));
    EXPECT_EQ(db.at(i), -dy.at(i));
  }
}
TEST(CudaBinary, AddsWhatIsScaled) {
  for_ops(OpList<Sub, Mul, Div>{}, []<class F>() {
    const int op = index_in<F>(BinaryOps{});
    for (const auto& [in, out] : pairs_of<F>()) {
      const Tensor x = numbers<F>(in, 291, 5), a = numbers<F>(in, 291, 6),
                   b = numbers<F>(in, 291, 7);
      compare(
          filled({291}, out, 1), filled({291}, out, 1), tolerance_of(out),
          fmt::format("{}, {} to {}", F::info.name, name(in), name(out)),
          [&](Launch& l, const Tensor& y) { cuda::plus_scaled(l, op, x, a, b, -2.5, y); },
          [&](Launch& l, const Tensor& y) { on_cpu(plus_scaled)(l, op, x, a, b, -2.5, y); });
    }
  });
}

TEST(CudaLosses, EveryLossAndDtype) {
  for_ops(Losses{}, []<class F>() {
    const int op = index_in<F>(Losses{});
    for (const auto& [in, out] : float_pairs) {
      const Tensor x = random({291}, in, 1, 0.01, 0.99), t = random({291}, in, 2, 0.01, 0.99),
                   dy = random({291}, out, 3);
      const std::string what = fmt::format("{}, {} to {}", F::info.name, name(in), name(out));
      compare(
          output({291}, out), output({291}, out), tolerance(out), what,
          [&](Launch& l, const Tensor& y) { cuda::elementwise_loss(l, op, x, t, 0.3, 0.25, y); },
          [&](Launch& l, const Tensor& y) { on_cpu(elementwise_loss)(l, op, x, t, 0.3, 0.25, y); });
      const Tensor got[] = {output({291}, in), output({291}, in)},
                   want[] = {output({291}, in), output({291}, in)};
      launch([&](Launch& l) {
        cuda::elementwise_loss_grad(l, op, x, t, 0.3, 0.25, dy, got[0], got[1]);
      });
      launch([&](Launch& l) {
        on_cpu(elementwise_loss_grad)(l, op, x, t, 0.3, 0.25, dy, want[0], want[1]);
      });
      expect_near(got[0], want[0], tolerance(in), what + ", dx");
      expect_near(got[1], want[1], tolerance(in), what + ", dtarget");
      compare(
          output({291}, in), want[1], tolerance(in), what + ", dtarget alone",
          [&](Launch& l, const Tensor& dt) {
            cuda::elementwise_loss_grad(l, op, x, t, 0.3, 0.25, dy, View{}, dt);
          },
          [](Launch&, const Tensor&) {});
    }
  });
}

TEST(CudaCells, EveryCellAndDtype) {
  for (const int64_t n : {5, 8, 64})
    for (const auto& [in, out] : float_pairs)
      for (const Cell kind : {Cell::Tanh, Cell::Relu, Cell::Lstm, Cell::Gru}) {
        const int64_t b = 7, gates = visit_cell(kind, []<class C>() { return C::gates; }),
                      kept = visit_cell(kind, []<class C>() { return C::kept; });
        const bool stateful = kind >= Cell::Lstm;
        const std::string what =
            fmt::format("cell {}, {} to {}, n {}", int(kind), name(in), name(out), n);
        // One step of a longer sequence: rows are further apart than they are long.
        const auto rows = [&](int64_t length, DType t, uint64_t seed) {
          const Tensor all = seed ? random({b, 3, length}, t, seed) : output({b, 3, length}, t);
          return all.with_layout(Layout({b, length}, {3 * length, 1}, length));
        };
        const Tensor x = rows(gates * n, in, 1), h = rows(gates * n, wide(in), 2);
        struct Run {
          Tensor state, kept, y, carry, dx, dh;
        };
        const auto made = [&, in = in, out = out] {
          return Run{rows(n, wide(in), 3),    rows(std::max<int64_t>(kept, 1) * n, wide(out), 0),
                     rows(n, out, 0),         rows(n, wide(out), 4),
                     rows(gates * n, out, 0), rows(gates * n, out, 0)};
        };
        const Tensor dy = rows(n, n == 8 ? wide(out) : out, 6), dnext = rows(n, wide(out), 7);
        const auto steps = [&](Launch& l, const Run& r, auto forward, auto backward) {
          const View state = stateful ? View(r.state) : View(), keep = kept ? View(r.kept) : View(),
                     carry = stateful ? View(r.carry) : View();
          forward(l, kind, x, h, state, keep, r.y);
          backward(l, kind, keep, r.y, dy, dnext, carry, r.dx, r.dh);
        };
        const Run got = made(), want = made();
        launch([&](Launch& l) { steps(l, got, cuda::cell, cuda::cell_grad); });
        launch([&](Launch& l) { steps(l, want, on_cpu(cell), on_cpu(cell_grad)); });
        const double tol = tolerance(out);  // (Each device orders what it keeps in its own way.)
        expect_near(got.state, want.state, tolerance(wide(in)), what + ", state");
        expect_near(got.y, want.y, tol, what + ", y");
        expect_near(got.carry, want.carry, tol, what + ", carry");
        expect_near(got.dx, want.dx, 2 * tol, what + ", dx");
        expect_near(got.dh, want.dh, 2 * tol, what + ", dh");
        // Absent views are neither read nor written.
        const Tensor y = rows(n, out, 0), dx = rows(gates * n, out, 0);
        launch([&](Launch& l) {
          cuda::cell(l, kind, x, h, View{}, View{}, y);
          cuda::cell_grad(l, kind, View{}, y, dy, View{}, View{}, dx, View{});
        });
        const Tensor want_y = rows(n, out, 0), want_dx = rows(gates * n, out, 0);
        launch([&](Launch& l) { on_cpu(cell)(l, kind, x, h, View{}, View{}, want_y); });
        expect_near(y, want_y, tol, what + ", y alone");
        if (!kept) {
          launch([&](Launch& l) {
            on_cpu(cell_grad)(l, kind, View{}, want_y, dy, View{}, View{}, want_dx, View{});
          });
          expect_near(dx, want_dx, 2 * tol, what + ", dx alone");
        }
      }
}

}  // namespace kernels_cuda_elementwise_test
}  // namespace mixtape::kernels
