// Every row of every op under autocast: its inputs after the policy, its dtype, the tensors on the
// tape and its gradients. The policy is its OpInfo's; its meaning is defined here once, with the
// exceptions.

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tests/support/amp.h"
#include "tests/support/op_cases.h"

namespace mixtape::amp {
using namespace internal;
namespace amp_policy_test {

using tests::OpCase;

// The manual's table again: the tests below check ops against it.
TEST(Policies, AreThoseOfTheManual) {
  using enum Precision;
  const std::map<Precision, std::string> table = {
      {Low,
       " matmul linear linear_cross_entropy addmm conv2d conv_transpose2d lstm gru rnn_tanh "
       "rnn_relu scaled_dot_product_attention "},
      {Full,
       " exp exp2 expm1 log log1p log2 log10 pow pow_scalar square reciprocal div_from_scalar "
       "rsqrt softplus tan sinh cosh softmax log_softmax logsumexp cross_entropy nll_loss mse_loss "
       "l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits "
       "kl_div cosine_similarity layer_norm group_norm instance_norm sum mean norm prod cumsum "
       "cumprod "},
      {Native,
       " rms_norm batch_norm gelu silu sigmoid tanh elu selu sqrt avg_pool2d adaptive_avg_pool2d "},
      {Widest,
       " add sub mul div maximum minimum where cat lt le gt ge eq ne addcmul addcdiv scatter_add "
       "dot "},
      {Any,
       " embedding gather relu leaky_relu dropout abs neg clamp max_pool2d argmax topk argsort "
       "reshape permute slice pad expand flip masked_fill cast "}};
  for (const auto& [precision, ops] : table) {
    size_t found = 0;
    for (const OpInfo* op : all_ops())
      if (ops.find(fmt::format(" {} ", op->name)) != ops.npos) {
        EXPECT_EQ(op->precision, precision) << op->name;
        ++found;
      }
    EXPECT_EQ(found + 1, size_t(std::ranges::count(ops, ' '))) << name(precision);
  }
}

// The first call of an op: its inputs after the policy, its result, and what it saved.
struct FirstCall : Observer {
  explicit FirstCall(const std::string& op) : op(op) {}
  void after(const Call& call, const Tensor& result) override {
    if (y || call.op.name != op || call.backward) return;
    info = &call.op;
    for (const Tensor* t : call.inputs) inputs.push_back(*t);
    y = result;
    if (y.grad_fn()) saved = y.grad_fn()->ctx.saved();
  }
  const std::string op;
  const OpInfo* info = nullptr;
  std::vector<Tensor> inputs, saved;
  Tensor y;
};

bool is_real(const Tensor& t) { return t && is_float(t.dtype()); }
bool shares(const Tensor& a, const Tensor& b) { return a && b && a.storage() == b.storage(); }

// The op, and for each of its inputs its index in the row's inputs; -1: derived from them.
std::pair<const OpInfo&, std::vector<int>> sources(const OpCase& c) {
  FirstCall plain(c.op);
  const auto in = tests::make_inputs(c, f32, true);
  {
    const Observe watch(plain);
    (void)c.run(in);
  }
  std::vector<int> of;
  for (const Tensor& t : plain.inputs) {
    const auto source = std::ranges::find_if(in, [&](const Tensor& x) { return shares(x, t); });
    of.push_back(source == in.end() ? -1 : int(source - in.begin()));
  }
  return {*plain.info, of};
}

// NaN is equal to itself.
std::string bytes(const Tensor& t) {
  const Tensor here = contiguous(t.detach()).to(Device::cpu());
  return {static_cast<const char*>(here.raw()), here.nbytes()};
}

// Catalogue.EveryPolicyIsTested checks that every op has a row that gets here.
struct EveryPolicy : testing::TestWithParam<OpCase> {};
INSTANTIATE_TEST_SUITE_P(Ops, EveryPolicy, testing::ValuesIn(tests::cases_here()),
                         [](const auto& i) { return i.param.name(); });

// Inputs in f32, in the 16-bit dtype, and as inside a network: 16-bit activations, f32 parameters.
TEST_P(EveryPolicy, IsAsTheTableSays) {
  const OpCase& c = GetParam();
  if (!c.half || c.composite) return;
  enum class From { Wide, Narrow, Network };
  const auto known = sources(c);
  const OpInfo& op = known.first;
  const std::vector<int>& source = known.second;
  for (const DType low : {f16, bf16})
    for (const From from : {From::Wide, From::Narrow, From::Network}) {
      auto in = tests::make_inputs(c, from == From::Wide ? f32 : low, true);
      if (from == From::Network) {
        const auto wide = tests::make_inputs(c, f32, true);
        for (size_t i = 0; i < source.size(); ++i)
          if (op.role(i) != Role::Activation && source[i] >= 0)
            in[size_t(source[i])] = wide[size_t(source[i])];
      }
      FirstCall ran(c.op);
      Tensor y;
      {
        const Autocast on({.low = low});
        const Observe watch(ran);
        y = c.run(in);
      }
      const auto where = [&](const char* what) {
        constexpr const char* names[] = {"f32", "narrow inputs", "narrow activations"};
        return fmt::format("{} from {} in {}: {}", name(op.precision), names[int(from)], low, what);
      };

      std::optional<DType> deciding;  // the result's dtype, if the policy does not fix it
      int64_t narrow = 0;             // elements of the largest 16-bit activation
      for (size_t i = 0; i < ran.inputs.size(); ++i) {
        const Tensor& t = ran.inputs[i];
        if (!is_real(t)) continue;
        const bool activation = op.role(i) == Role::Activation;
        if (source[i] >= 0) {
          const bool casts = op.precision == Precision::Low && op.role(i) <= Role::Parameter;
          EXPECT_EQ(t.dtype(), casts ? low : in[size_t(source[i])].dtype()) << where("input ") << i;
        }
        if (!deciding) deciding = t.dtype();
        if (activation && is_half(t.dtype())) narrow = std::max(narrow, t.numel());
      }
      if (!is_real(ran.y) || !deciding) continue;
      const bool loss = c.op == "linear_cross_entropy";  // of f32 logits, which are not a result
      // A residual, which is of the result's shape, keeps its dtype.
      const Tensor& last = ran.inputs.back();
      const bool adds_wide = op.precision == Precision::Low && ran.inputs.size() == 4 &&
                             last.shape() == ran.y.shape() && last.dtype() == f32;
      EXPECT_EQ(ran.y.dtype(), loss || adds_wide || op.precision == Precision::Full ? f32
                               : op.precision == Precision::Low                     ? low
                                                                                    : *deciding)
          << where("result");

      // An f32 copy of a 16-bit input would double the tape's memory. (These ops keep three sums of
      // each row, which are as large as the rows of their cases, or slopes of gates, which f16 and
      // bf16 cannot hold.)
      static const std::set<std::string> sums = {"cross_entropy",
                                                 "cross_entropy_probabilities",
                                                 "linear_cross_entropy",
                                                 "cosine_similarity",
                                                 "lstm",
                                                 "gru",
                                                 "rnn_tanh"};
      for (const Tensor& s : ran.saved) {
        const bool given =
            std::ranges::any_of(ran.inputs, [&](const Tensor& t) { return shares(t, s); });
        if (narrow > 0 && !sums.contains(c.op) && !adds_wide && is_real(s) && s.dtype() == f32 &&
            !given && !shares(s, ran.y)) {
          EXPECT_LT(s.numel(), narrow) << where("saves a wide tensor");
        }
      }

      if (!c.differentiable) continue;
      y.backward({.gradient = tests::output_gradient(y)});
      for (size_t j = 0; j < in.size(); ++j)
        if (in[j].is_leaf()) {
          EXPECT_EQ(in[j].grad().dtype(), in[j].dtype()) << where("gradient ") << j;
        }
      // A product's gradient for an f32 parameter was never rounded to 16 bits, unless it is dy
      // itself. (A few numbers may fit into 16 bits by chance.)
      for (size_t i = 0; i < source.size(); ++i) {
        if (op.precision != Precision::Low || op.role(i) == Role::Activation) continue;
        const Tensor p = source[i] < 0 ? Tensor() : in[size_t(source[i])];
        if (!p || !p.is_leaf() || p.dtype() != f32 || p.numel() < 8) continue;
        if (p.shape() == y.shape()) continue;
        const auto g = to_vector(p.grad());
        EXPECT_TRUE(g != to_vector(cast(cast(p.grad(), low), f32)) ||
                    sum(abs(p.grad())).item() == 0)
            << where("gradient of parameter ") << i;
      }
    }
}

TEST_P(EveryPolicy, LeavesF64Alone) {
  const OpCase& c = GetParam();
  const auto in = tests::make_inputs(c, f64, true);
  const Tensor want = c.run(in);
  const Autocast on({.low = f16});
  const Tensor y = c.run(in);
  EXPECT_EQ(y.dtype(), want.dtype());
  EXPECT_EQ(bytes(y), bytes(want));
}

TEST_P(EveryPolicy, MayBeOverridden) {
  const OpCase& c = GetParam();
  if (!c.half) return;
  using enum Precision;
  for (const Precision p : {Any, Native, Low, Full, Widest})
    for (const DType given : {f32, f16}) {
      const Autocast on({.low = f16, .overrides = {{"*", p}}});
      const auto in = tests::make_inputs(c, given, true);
      const Tensor y = c.run(in);
      if (!c.differentiable) continue;
      y.backward({.gradient = ones_like(y)});
      for (const Tensor& t : in) {
        if (t.is_leaf()) {
          EXPECT_EQ(t.grad().dtype(), given) << "as " << name(p);
        }
      }
    }
}

}  // namespace amp_policy_test
}  // namespace mixtape::amp
