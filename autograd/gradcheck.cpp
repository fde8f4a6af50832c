#include "autograd/gradcheck.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "autograd/ops.h"
#include "core/check.h"
#include "core/no_copy.h"

namespace mixtape {
namespace {

using Checked = std::function<Tensor(const std::vector<Tensor>&)>;

// sum(x * fixed random numbers): a scalar whose gradient shows every mistake.
Tensor projected(const Tensor& x, uint64_t seed) {
  const Seed fixed(seed);
  return sum(x * uniform(x.shape(), 0.5, 1.5, f64, x.device()));
}
Tensor projected(const Checked& f, const std::vector<Tensor>& inputs, uint64_t seed) {
  const Tensor y = f(inputs);
  check(y.dtype() == f64, "gradcheck needs an f64 result, not {}", name(y.dtype()));
  return projected(y, seed);
}

bool is_varied(const Tensor& t) { return t && t.is_leaf() && t.dtype() == f64; }

// Throws Error if an element that is varied is in memory twice, so that another changes with it.
void check_apart(const std::vector<Tensor>& inputs) {
  std::map<const void*, size_t> at;  // the input whose element is there
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = inputs[i];
    const auto is_it = [&](const Tensor& other) { return t.is_same(other); };
    if (!t || std::any_of(inputs.begin(), inputs.begin() + int64_t(i), is_it)) continue;
    for (int64_t e = 0; e < t.numel(); ++e) {
      const int64_t bytes = t.layout().at(e) * int64_t(size_of(t.dtype()));
      const auto [place, is_new] = at.try_emplace(static_cast<const char*>(t.raw()) + bytes, i);
      check(is_new || !(is_varied(t) || is_varied(inputs[place->second])),
            "gradcheck varies one element at a time, but two, of inputs {} and {}, share memory "
            "(clone() the input)",
            place->second, i);
    }
  }
}

// A guard that changes the value of an element.
struct Moved : NoCopy {
  Moved(const Tensor& t, int64_t i, double value) : t_(t), i_(i), old_(t.at(i)) {
    t_.set(i_, value);
  }
  ~Moved() { t_.set(i_, old_); }

 private:
  const Tensor& t_;
  const int64_t i_;
  const double old_;
};

std::string first_order(const Checked& f, const std::vector<Tensor>& inputs,
                        const GradcheckOptions& o, uint64_t seed) {
  std::vector<Tensor> varied;
  std::vector<size_t> position;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (is_varied(inputs[i])) {
      varied.push_back(inputs[i]);
      position.push_back(i);
    }
  check(!varied.empty(), "gradcheck found no f64 input that requires a gradient");
  const Tensor y = projected(f, inputs, seed);  // without history if f detached every input
  const std::vector<Tensor> analytic = y.requires_grad() ? grad({y}, varied, {.allow_unused = true})
                                                         : std::vector<Tensor>(varied.size());
  for (size_t v = 0; v < varied.size(); ++v)
    for (int64_t i = 0; i < varied[v].numel(); ++i) {
      const double x = varied[v].at(i);
      const auto value = [&](double at) {
        const Moved moved(varied[v], i, at);
        return projected(f, inputs, seed).item();  // recorded, since f may differentiate inside
      };
      const double numeric = (value(x + o.step) - value(x - o.step)) / (2 * o.step),
                   found = analytic[v] ? analytic[v].at(i) : 0;
      if (!(std::abs(found - numeric) <= o.tolerance * std::max(1.0, std::abs(numeric))))
        return fmt::format("input {}, element {}: the gradient is {}, differences say {}",
                           position[v], i, found, numeric);
    }
  return {};
}

}  // namespace

std::string gradcheck(const Checked& f, const std::vector<Tensor>& inputs,
                      const GradcheckOptions& o) {
  check_apart(inputs);
  const EnableGrad on;
  std::string wrong = first_order(f, inputs, o, 1);
  if (!wrong.empty() || !o.second_order) return wrong;
  // The gradient itself, as a function of the same inputs.
  const Checked gradient = [&](const std::vector<Tensor>& in) {
    std::vector<Tensor> leaves;
    for (const Tensor& t : in)
      if (is_varied(t)) leaves.push_back(t);
    // Gives a constant gradient, which has no history, one with derivative zero.
    Tensor total = zeros({}, f64, leaves[0].device());
    for (const Tensor& leaf : leaves) total = total + sum(leaf) * 0;
    for (const Tensor& g :
         grad({projected(f, in, 1)}, leaves, {.create_graph = true, .allow_unused = true}))
      if (g) total = total + projected(g, 3);
    return total;
  };
  GradcheckOptions looser = o;
  looser.tolerance = std::max(o.tolerance, 1e-5);
  wrong = first_order(gradient, inputs, looser, 2);
  return wrong.empty() ? wrong : "second order: " + wrong;
}

}  // namespace mixtape
