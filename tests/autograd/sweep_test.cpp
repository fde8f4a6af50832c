// The rule of docs/numerics.md over the whole catalogue: a result is the exact function of the
// inputs as they are stored, rounded once, and so is a gradient. Every row of op_cases runs in f16,
// bf16 and f32 and is compared with itself in f64 on the CPU, on the same inputs. So do functions
// that are made of other ops.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/call.h"
#include "core/format.h"
#include "core/random.h"
#include "tests/support/op_rows/rows.h"
#include "tests/support/values.h"

namespace mixtape {
using namespace internal;
namespace sweep_test {

using tests::Input;
using tests::OpCase;
constexpr double infinity = std::numeric_limits<double>::infinity();

// A dtype's grid of numbers, and how many of its ulps a value and a gradient may be off: half
// dtypes by their rounding, f32 by the error of its functions as well.
struct Format {
  DType dtype;
  int digits, lowest;  // bits of precision; exponent of the smallest subnormal
  double beyond;       // the power of two above the largest number, for which infinity stands
  double value, gradient;

  double ulp(double x) const {
    const int exponent = x == 0 ? lowest : std::ilogb(std::min(std::abs(x), beyond / 2));
    return std::ldexp(1, std::max(exponent - digits + 1, lowest));
  }
  double largest() const { return beyond * (1 - std::ldexp(1, -digits)); }
  double unit() const { return std::ldexp(1, -digits); }  // the largest relative rounding error
  Values rounded(const Values& x) const {
    return to_vector(from(x, {int64_t(x.size())}, f64).to(dtype));
  }
};
const Format formats[] = {
    {f16, 11, -24, 0x1p16, 1, 2},
    {bf16, 8, -133, 0x1p128, 1, 2},
    {f32, 24, -142, 0x1p128, 4, 8}};  // its own products lose digits of subnormals

// --- errors that are allowed for ---

enum class Rounds {
  Once,   // pointwise: exact, but for the last rounding
  Terms,  // adds terms that may cancel, each with the error of f32
  Steps,  // stores a result in between, which is rounded to the row's dtype
  Often,  // does so many times, or cancels: runs, but is not held to the bound
};
struct Exception {
  std::string_view row;  // the beginning of its name
  Rounds rounds;
  const char* reason;
  double least = 0, most = infinity;  // magnitudes of the points, besides 0
};
const Exception exceptions[] = {
    {"pow", Rounds::Once, "b - 1, of a power's slope, is in f32", 0x1p-20, 0x1p20},
    {"linear_to_gelu", Rounds::Steps, "gelu's slope is taken at the sums as they are stored"},
    {"conv2d_to_gelu", Rounds::Steps, "gelu's slope is taken at the sums as they are stored"},
    {"conv2d_of_lines_to_gelu", Rounds::Steps, "as conv2d_to_gelu"},
    {"linear_and_residual_to_gelu", Rounds::Steps, "as linear_to_gelu"},
    {"conv2d_and_residual_to_gelu", Rounds::Steps, "as conv2d_to_gelu"},
    {"scaled_dot_product_attention", Rounds::Steps, "a product takes the probabilities"},
    {"linear_cross_entropy", Rounds::Steps, "a product takes the gradient of the logits"},
    {"lstm", Rounds::Steps, "the next step's product takes h"},
    {"gru", Rounds::Steps, "the next step's product takes h"},
    {"rnn", Rounds::Steps, "the next step's product takes h"},
    {"cosine_similarity_broadcast", Rounds::Often, "for two numbers its slopes cancel to 0"},
    {"gather_pad", Rounds::Steps, "pads one dimension after the other"},
    {"gather_ctc_loss", Rounds::Often, "takes a log_softmax, rounded to its dtype"},
    {"where_rrelu", Rounds::Often, "draws numbers of its dtype"},
    {"matmul_cdist", Rounds::Often, "loses digits of close points"},
    {"norm_triplet_margin_with_distance_loss", Rounds::Often, "slopes of two distances cancel"},
};
const Exception* exception_of(const OpCase& c) {
  for (const Exception& e : exceptions)
    if (c.name().starts_with(e.row)) return &e;
  return nullptr;
}
Rounds rounds_of(const OpCase& c, int ops) {
  if (ops > 1) return Rounds::Steps;
  if (const Exception* e = exception_of(c)) return e->rounds;
  return c.pointwise ? Rounds::Once : Rounds::Terms;
}

// --- runs ---

// The inputs of one run, on the CPU: reals in f64 that the format holds exactly.
struct Trial {
  std::string name;
  std::vector<Tensor> inputs;
  double rounding = 0x1p-24;  // the relative error of a term
  double dy = 1;              // the size of gradients
};

struct Results {
  Values y;
  std::vector<Values> dx;  // by input; empty for one without gradient
  int ops = 0;             // that the row calls itself and that compute
};

struct Counting : Observer {
  int ops = 0;
  void after(const Call& call, const Tensor& y) override {
    ops += call.op.precision != Precision::Any && is_float(y.dtype()) && Scope::caller().empty();
  }
};

// Runs a row with its reals in a dtype; dy is repeated as often as the result needs.
Results run(const OpCase& c, const std::vector<Tensor>& inputs, const Values& dy, DType dtype,
            Device device) {
  const DefaultDevice here(device);
  std::vector<Tensor> in;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool real = c.inputs[i].real();
    in.push_back((real ? inputs[i].to(dtype) : inputs[i]).to(device).detach());
    if (real && c.inputs[i].differentiated()) in[i].set_requires_grad();
  }
  Counting count;
  const Tensor y = [&] {
    const Observe watch(count);
    return c.run(in);
  }();
  Results r{to_vector(y), std::vector<Values>(in.size()), count.ops};
  if (!y.requires_grad()) return r;
  Values all(r.y.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = dy[i % dy.size()];
  y.backward({.gradient = from(all, y.shape(), f64).to(y.dtype())});
  for (size_t i = 0; i < in.size(); ++i)
    if (in[i].has_grad()) r.dx[i] = to_vector(in[i].grad());
  return r;
}

// --- trials ---

// More than 100 points over all numbers of a format: zeros, the smallest and the largest, powers of
// two, infinities, and densely where functions bend and saturate.
Values points(const Format& f) {
  const double normal = std::ldexp(f.ulp(0), f.digits - 1);
  Values x = {0,  1,    2,  10,  17,       20,     40,          88,
              89, 88.7, 90, 103, f.ulp(0), normal, f.largest(), infinity};
  for (int i = 1; i <= 36; ++i) x.push_back(i / 3.0);
  for (int e = f.lowest; std::ldexp(1, e) < f.beyond; e += f.dtype == f16 ? 2 : 12)
    x.push_back(std::ldexp(1.375, e));
  for (size_t i = 0, n = x.size(); i < n; ++i) x.push_back(-x[i]);
  return f.rounded(x);
}

// All points. Several inputs are combined in ten ways, and on the CPU, whose formulas are those of
// other devices, each of them with constants, at which terms cancel: targets of 1, say.
Trial pointwise_trial(const OpCase& c, const Format& f, bool with_constants) {
  Values all = points(f);
  if (const Exception* e = exception_of(c))
    std::erase_if(all, [&](double x) {
      return x != 0 && !(e->least <= std::abs(x) && std::abs(x) <= e->most);
    });
  constexpr double constants[] = {0, 1, -1, 2};
  const size_t n = all.size(), inputs = c.inputs.size(),
               ways = inputs == 1 ? 1 : 10 + (with_constants ? std::size(constants) * inputs : 0);
  Trial t{"points", {}};
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const bool mask = c.inputs[i].kind == Input::Mask;
    Values v;
    for (size_t way = 0; way < ways; ++way)
      for (size_t k = 0; k < n; ++k) {
        const size_t other = i == 0 ? k : (k * (2 * i + 1) + way * (way + 7 * i)) % n;
        const bool varies = way < 10 || way % inputs == i;
        const double at = varies ? all[way < 10 ? other : k] : constants[(way - 10) / inputs],
                     x = std::clamp(at, c.least, c.most);
        v.push_back(mask ? double(k % 2) : x);
      }
    t.inputs.push_back(from(v, {int64_t(v.size())}, mask ? boolean : f64));
  }
  return t;
}

// Random inputs of these shapes, the first of them scaled.
Trial random_trial(const OpCase& c, const Format& f, std::string name,
                   const std::vector<Shape>& shapes, uint64_t seed, double scale = 1) {
  Trial t{std::move(name), tests::make_inputs(c, f64, false, shapes, seed)};
  for (size_t i = 0; i < t.inputs.size(); ++i) {
    if (!c.inputs[i].real()) continue;
    const Tensor x = clamp(t.inputs[i] * std::exchange(scale, 1), c.least, c.most);
    t.inputs[i] = x.to(f.dtype).to(f64);
  }
  return t;
}

std::vector<Trial> trials(const OpCase& c, const Format& f, bool on_host) {
  std::vector<Trial> all;
  // The squares of large numbers overflow, and those of small ones vanish.
  const double large = std::ldexp(1, f.dtype == f16 ? 10 : 100), small = 1 / large;
  if (c.pointwise) {
    all.push_back(pointwise_trial(c, f, on_host));
  } else {
    for (uint64_t seed = 100; seed < 108; ++seed)
      all.push_back(random_trial(c, f, fmt::format("seed {}", seed), tests::shapes(c), seed));
    all.push_back(random_trial(c, f, "large", tests::shapes(c), 100, large));
    all.push_back(random_trial(c, f, "small", tests::shapes(c), 100, small));
  }
  // So may products with large and small gradients (except that stddev's carry its scale for a
  // while); where formulas are those of the CPU, there.
  if (c.name() != "sqrt_in_stddev" && c.name() != "sqrt_std_mean" &&
      (on_host || (f.dtype == f32 && !c.pointwise)))
    for (size_t i = 0, n = all.size(); i < n; ++i)
      for (const double dy : {large, small})
        all.push_back(
            {fmt::format("{} under {:.3g}", all[i].name, dy), all[i].inputs, all[i].rounding, dy});
  if (c.sums.empty()) return all;
  Trial ones = random_trial(c, f, "ones", c.sums, 100);
  for (size_t i = 0; i < c.inputs.size(); ++i)
    if (c.inputs[i].real()) ones.inputs[i] = full_like(ones.inputs[i], 1);
  for (Trial t : {random_trial(c, f, "sums", c.sums, 100),
                  random_trial(c, f, "large sums", c.sums, 101, large), ones}) {
    t.rounding = 0x1p-18;  // 2^12 additions one after another err as in a random walk
    all.push_back(std::move(t));
  }
  return all;
}

// --- comparison ---

// Inputs that are off by a relative error.
std::vector<Tensor> disturbed(const OpCase& c, const Trial& t, double relative) {
  std::vector<Tensor> in = t.inputs;
  for (size_t i = 0; i < in.size(); ++i)
    if (c.inputs[i].real())
      in[i] = clamp(in[i] * (1 + relative * uniform(in[i].shape(), -1, 1, f64)), c.least, c.most);
  return in;
}

// Each element's largest change if all inputs and dy are off by a relative error: what may be lost
// where terms of such an error cancel.
Results sensitivity(const OpCase& c, const Trial& t, const Values& dy, const Results& exact,
                    double relative) {
  Results widest{Values(exact.y.size()), {}};
  for (const Values& v : exact.dx) widest.dx.emplace_back(v.size());
  const auto widen = [](Values& into, const Values& a, const Values& b) {
    for (size_t i = 0; i < into.size(); ++i)
      if (std::isfinite(a[i] - b[i])) into[i] = std::max(into[i], std::abs(a[i] - b[i]));
  };
  for (uint64_t draw = 0; draw < 6; ++draw) {
    const Seed seed(draw);
    Values near = dy;
    for (double& x : near) x *= 1 + relative * (2 * generator().uniform() - 1);
    const Results other = run(c, disturbed(c, t, relative), near, f64, Device::cpu());
    widen(widest.y, exact.y, other.y);
    for (size_t i = 0; i < widest.dx.size(); ++i) widen(widest.dx[i], exact.dx[i], other.dx[i]);
  }
  return widest;
}

struct Worst {
  double ulps = 0;
  std::string where = "exact";

  void see(double other, const auto& text) {
    if (other > ulps) ulps = other, where = text();
  }
};
struct RowReport {
  Worst value, gradient;
  Rounds rounds = Rounds::Once;
};

// The error in ulps, beyond what is allowed for.
double error_of(const Format& f, double got, double want, double allowed) {
  if (std::isnan(got) || std::isnan(want))
    return std::isnan(got) && std::isnan(want) ? 0 : infinity;
  const double a = std::clamp(got, -f.beyond, f.beyond), b = std::clamp(want, -f.beyond, f.beyond);
  return std::max(0.0, std::abs(a - b) - allowed) / f.ulp(b);
}

struct Comparison {
  const OpCase& row;
  const Format& format;
  const Trial& trial;
  const Values& dy;
  const Results &got, &want, &changes;
  double relative;
  bool once;

  void report(RowReport& to) const {
    see(to.value, got.y, want.y, changes.y, "value", false);
    for (size_t i = 0; i < want.dx.size(); ++i)
      see(to.gradient, got.dx[i], want.dx[i], once ? Values() : changes.dx[i],
          fmt::format("gradient {}", i), true);
  }

 private:
  bool overflows(double x) const { return !(std::abs(x) < format.largest()); }

  // Where a sum, or the result that a gradient belongs to, is beyond the format, any overflow will
  // do. A slope that is no normal f32 number is none, even if its product with dy is one.
  bool excused(size_t i, double a, double b, bool gradient) const {
    const double slope = gradient && at_points() ? std::abs(b / dy[i % dy.size()]) : 1;
    if (std::isfinite(b) && b != 0 && !(0x1p-126 <= slope && slope < 0x1p128)) return true;
    if (once || std::isfinite(a)) return false;
    return overflows(b) ||
           (gradient && std::ranges::any_of(want.y, [&](double y) { return overflows(y); }));
  }
  bool at_points() const { return row.pointwise && trial.name.starts_with("points"); }

  void see(Worst& worst, const Values& a, const Values& b, const Values& change,
           const std::string& what, bool gradient) const {
    constexpr double margin = 16;
    ASSERT_EQ(a.size(), b.size()) << row.name() << ", " << trial.name << ", " << what;
    // Terms may cancel in a way that no change of inputs shows: all of them where inputs are ones.
    double largest = 0;
    for (const double x : b)
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    const bool vanishes = trial.name == "ones" && largest < 1e-12;
    double floor = vanishes ? margin * relative : at_points() ? 0 : 0x1p-22 * largest;
    // AVX-512's bf16 product takes numbers below 2^-126 as zero.
    if (format.dtype == bf16 && !once) floor = std::max(floor, 0x1p-126);
    for (size_t i = 0; i < a.size(); ++i) {
      if (excused(i, a[i], b[i], gradient)) continue;
      worst.see(error_of(format, a[i], b[i], once ? 0 : std::max(floor, margin * change[i])), [&] {
        return fmt::format("{} of {}, {}, element {}{}: {:.9g}, exactly {:.9g}", what, row.name(),
                           trial.name, i, at(i), a[i], b[i]);
      });
    }
  }
  std::string at(size_t i) const {
    std::string text;
    if (at_points())
      for (const Tensor& x : trial.inputs) text += fmt::format(" at {:.9g}", x.at(int64_t(i)));
    return text;
  }
};

RowReport sweep_row(const OpCase& c, const Format& f) {
  const Device device = DefaultDevice::current();
  const DefaultDevice host(Device::cpu());
  const Values unit = f.rounded({1, -0.7, 1.9, 0.3, -1, 0.55, -0.11});
  RowReport report;
  for (const Trial& t : trials(c, f, device.is_host())) {
    Values dy = unit;
    for (double& x : dy) x *= t.dy;
    const Results got = run(c, t.inputs, dy, f.dtype, device),
                  want = run(c, t.inputs, dy, f64, Device::cpu());
    report.rounds = rounds_of(c, want.ops);
    // (f32 is the dtype of its own terms.)
    const bool once =
        report.rounds == Rounds::Once && is_half(f.dtype) && t.name.starts_with("points");
    const double relative =
        std::max(t.rounding,
                 report.rounds == Rounds::Steps ? (is_half(f.dtype) ? 2 : 64) * f.unit() : 0x1p-24);
    const Results changes = once ? Results() : sensitivity(c, t, dy, want, relative);
    Comparison{c, f, t, dy, got, want, changes, relative, once}.report(report);
  }
  return report;
}

std::vector<OpCase> rows_here() {
  std::vector<OpCase> rows = tests::cases_here();
  for (OpCase& c : tests::composed())
    if (c.differentiable && !c.composite && (!c.cpu_only || DefaultDevice::current().is_host()))
      rows.push_back(std::move(c));
  return rows;
}

struct Sweep : testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Sweep, testing::ValuesIn(formats),
                         [](const auto& i) { return std::string(name(i.param.dtype)); });

TEST_P(Sweep, EveryOpRoundsOnce) {
  const Format& f = GetParam();
  RowReport worst;
  int swept = 0;
  std::string left_out, in_steps, often;
  for (const OpCase& c : rows_here()) {
    if (is_half(f.dtype) && !c.half) {
      left_out += " " + c.name();
      continue;
    }
    const RowReport row = sweep_row(c, f);
    if (row.rounds == Rounds::Often) {
      often += " " + c.name();
      continue;
    }
    ++swept;
    if (row.rounds == Rounds::Steps) in_steps += " " + c.name();
    EXPECT_LE(row.value.ulps, f.value) << row.value.where;
    EXPECT_LE(row.gradient.ulps, f.gradient) << row.gradient.where;
    worst.value.see(row.value.ulps, [&] { return row.value.where; });
    worst.gradient.see(row.gradient.ulps, [&] { return row.gradient.where; });
  }
  fmt::print("{}: {} rows\n  {:.2f} ulp: {}\n  {:.2f} ulp: {}\n", f.dtype, swept, worst.value.ulps,
             worst.value.where, worst.gradient.ulps, worst.gradient.where);
  fmt::print("  rounded in between:{}\n  take no {}:{}\n", in_steps, f.dtype, left_out);
  fmt::print("  rounded often, and not held to the bound:{}\n", often);
}

// --- slopes at NaN ---

// The slopes at NaN that are numbers, by row and operand, as in PyTorch; all others are NaN, where
// PyTorch's depend on how many elements there are (elu, hardswish).
struct Slope {
  std::string_view row;
  double a, b = NAN;
};
const Slope slopes_at_nan[] = {
    {"relu", 1},
    {"relu6", 0},
    {"hardsigmoid", 0},
    {"leaky_relu", 0.2},
    {"neg", -1},
    {"abs", 0},
    {"sign", 0},
    {"floor", 0},
    {"ceil", 0},
    {"round", 0},
    {"trunc", 0},
    {"frac", 1},
    {"clamp", 0},
    {"hardtanh", 1},
    {"add", 1, 1},
    {"sub", 1, -1},
    {"mul", 1, 1},
    {"div", 1},
    {"pow", 1, 0},
    {"maximum", 1, 1},
    {"minimum", 1, 1},
    {"remainder", 1},
    {"fmod", 1},
    {"floor_divide", 0, 0},
    {"copysign", NAN, 0},
    {"swiglu", NAN, 1 / (1 + std::exp(-1.0))},
    {"lerp", 0.75, 0.25},
    {"lerp_near_b", 0.25, 0.75},
    {"add_scalar", 1},
    {"sub_scalar", 1},
    {"mul_scalar", -1.5},
    {"div_scalar", 1.25},
    {"remainder_scalar", 1},
    {"fmod_scalar", 1},
    {"floor_divide_scalar", 0},
    {"sub_from_scalar", -1},
    {"cast", 1},
    {"clone", 1},
    {"l1_loss", 0, 0},
    {"binary_cross_entropy", NAN, -100},
    {"binary_cross_entropy_with_logits", NAN, -1},
    {"kl_div", -1, NAN},
    {"poisson_rate_nll_loss", NAN, 0},
    // composed
    {"softshrink", 1},
    {"hardshrink", 1},
    {"clamp_to_tensors", 0},
    {"nan_to_num", 0},
    {"deg2rad", 3.14159265358979 / 180},
};

// Functions of numbers that are composed of other ops, which have no rows.
std::vector<OpCase> composed_rows() {
  const auto row = [](std::string name, Tensor (*f)(const Tensor&)) -> OpCase {
    return {
        .op = std::move(name), .inputs = {{{1}}}, .run = [f](const auto& x) { return f(x[0]); }};
  };
  using X = const Tensor&;
  return {
      row("celu", [](X x) { return celu(x, 2); }),
      row("softshrink", [](X x) { return softshrink(x); }),
      row("hardshrink", [](X x) { return hardshrink(x); }),
      row("logit", [](X x) { return logit(x); }),
      row("logit_of_clamped", [](X x) { return logit(x, 0.1); }),
      row("clamp_to_tensors",
          [](X x) { return clamp(x, full_like(x.detach(), -1), full_like(x.detach(), 1)); }),
      row("nan_to_num", [](X x) { return nan_to_num(x); }),
      row("deg2rad", deg2rad),
      row("sinc", sinc),
  };
}

// One operand is NaN, the others are `beside`.
void expect_slopes_at_nan(const OpCase& c, size_t operand, double beside, bool recorded) {
  std::vector<Tensor> in;
  for (size_t i = 0; i < c.inputs.size(); ++i)
    in.push_back(full({17}, i == operand ? NAN : beside).set_requires_grad());
  const Tensor y = c.run(in);
  const Tensor dx = grad({sum(y)}, {in[operand]}, {.create_graph = recorded})[0];
  const Slope* known = nullptr;
  for (const Slope& s : slopes_at_nan)
    if (s.row == c.op || s.row == c.name()) known = &s;
  const double want = !known ? NAN : operand == 0 ? known->a : known->b;
  for (const double got : to_vector(dx))
    if (std::isnan(want))
      EXPECT_TRUE(std::isnan(got)) << c.name() << ", operand " << operand << ": " << got;
    else
      EXPECT_NEAR(got, want, 1e-6) << c.name() << ", operand " << operand;
}

TEST(Sweep, SlopesAtNanAreThoseOfPyTorch) {
  std::vector<OpCase> rows = composed_rows();
  for (const OpCase& c : tests::cases_here())
    if (c.pointwise && c.inputs.size() <= 2 &&
        std::ranges::all_of(c.inputs, [](const Input& i) { return i.kind == Input::Real; }) &&
        c.differentiable)
      rows.push_back(c);
  for (const OpCase& c : rows)
    for (size_t operand = 0; operand < c.inputs.size(); ++operand)
      for (const bool recorded : {false, true}) expect_slopes_at_nan(c, operand, 1, recorded);
  for (const OpCase& c : rows)  // a length of 0
    if (c.op == "atan2")
      for (const size_t operand : {0, 1})
        for (const bool recorded : {false, true}) expect_slopes_at_nan(c, operand, 0, recorded);
}

}  // namespace sweep_test
}  // namespace mixtape
