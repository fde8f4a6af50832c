// Einstein summation. An axis names each dimension of an operand. Operands are multiplied in pairs,
// the cheapest pair first, each as one batched matrix product whose axes are permuted: those of the
// batch, of one operand, and those to sum over.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "autograd/ops.h"
#include "autograd/ops/checks.h"
#include "core/check.h"
#include "core/format.h"
#include "core/parse.h"
#include "core/thread_state.h"

namespace mixtape {
using namespace internal;
namespace {

using Axis = int;  // a letter, or a dimension of "...": -1 for its last, -2 for the one before, ...
using Axes = std::vector<Axis>;

bool contains(const Axes& axes, Axis a) { return std::ranges::find(axes, a) != axes.end(); }
Axes only(const Axes& axes, const auto& wanted) {
  Axes result;
  std::ranges::copy_if(axes, std::back_inserter(result), wanted);
  return result;
}

// Parses "i...j"; `dots` is the number of dimensions that "..." stands for.
Axes parse_term(std::string_view term, int dots) {
  Axes axes;
  for (size_t i = 0; i < term.size(); ++i) {
    if (term.substr(i, 3) == "...") {
      for (Axis a = -dots; a < 0; ++a) axes.push_back(a);
      i += 2;
    } else {
      check((term[i] >= 'a' && term[i] <= 'z') || (term[i] >= 'A' && term[i] <= 'Z'),
            "'{}' in '{}' is not a letter", term[i], term);
      axes.push_back(term[i]);
    }
  }
  return axes;
}

// The number of dimensions of x that "..." in its term stands for.
int dotted(std::string_view term, const Tensor& x) {
  parse_term(term, 0);  // throws if something is not a letter
  const size_t dots = term.find("...");
  const int letters = int(term.size()) - (dots == term.npos ? 0 : 3);
  check(dots == term.npos || term.find("...", dots + 1) == term.npos, "'{}' has '...' twice", term);
  check(dots == term.npos ? letters == x.rank() : letters <= x.rank(),
        "'{}' names {} dimensions of an operand of shape {}", term, letters, x.shape());
  return x.rank() - letters;
}

struct Operand {
  Tensor x;
  Axes axes;

  // Replaces dimensions a < b by their diagonal, as the last dimension.
  void take_diagonal(int a, int b) {
    x = diagonal(x, 0, a, b);
    axes.push_back(axes[size_t(a)]);
    axes.erase(axes.begin() + b);
    axes.erase(axes.begin() + a);
  }
  void sum_all_but(const auto& wanted) {
    Dims summed;
    for (int d = 0; d < x.rank(); ++d)
      if (!wanted(axes[size_t(d)])) summed.push_back(d);
    if (!summed.empty()) x = sum(x, summed);
    axes = only(axes, wanted);
  }
  Tensor permuted(const Axes& to) const {
    Dims order;
    for (const Axis a : to) order.push_back(int(std::ranges::find(axes, a) - axes.begin()));
    return permute(x, order);
  }
};

class Einsum {
 public:
  Einsum(std::string_view equation, const std::vector<Tensor>& operands) {
    const size_t arrow = equation.find("->");
    const auto terms = split_at(equation.substr(0, arrow), ',');
    check(terms.size() == operands.size(), "{} operands need as many terms, got {}",
          operands.size(), terms.size());
    int dots = 0;  // the most dimensions that any "..." stands for
    for (size_t i = 0; i < terms.size(); ++i) {
      const int here = dotted(terms[i], operands[i]);
      operands_.push_back({operands[i], parse_term(terms[i], here)});
      dots = std::max(dots, here);
    }
    for (const Operand& o : operands_) measure(o);
    result_ = arrow == equation.npos ? implied_result(dots)
                                     : parse_term(equation.substr(arrow + 2), dots);
    for (const Axis a : result_) {
      check(std::ranges::count(result_, a) == 1, "the result names {} twice", name(a));
      check(size(a) >= 0, "the result names {}, which no operand has", name(a));
    }
    for (Operand& o : operands_) simplify(o);
  }

  Tensor run() {
    // Steps in f32 round the result once, unless a policy chooses the dtype of each.
    const DType dtype = operands_[0].x.dtype();
    const auto same = [&](const Operand& o) { return o.x.dtype() == dtype; };
    const bool wide = is_half(dtype) && std::ranges::all_of(operands_, same) && takes_steps() &&
                      !ThreadState::current().policy;
    for (Operand& o : operands_) o.x = wide ? cast(o.x, f32) : o.x;
    while (operands_.size() > 1) {
      const auto [i, j] = cheapest_pair();
      const Operand b = extract(j), a = extract(i);
      operands_.push_back(multiply(a, b));
    }
    operands_[0].sum_all_but([&](Axis a) { return contains(result_, a); });
    const Tensor y = operands_[0].permuted(result_);
    return wide ? cast(y, dtype) : y;
  }

 private:
  static std::string name(Axis a) {
    return a < 0 ? fmt::format("dimension {} of '...'", a) : fmt::format("'{}'", char(a));
  }
  int64_t& size(Axis a) { return sizes_.try_emplace(a, -1).first->second; }
  int64_t size(const Axes& axes) {
    int64_t product = 1;
    for (const Axis a : axes) product *= size(a);
    return product;
  }

  // Records the sizes of o's axes. A size of 1 gives way to any other.
  void measure(const Operand& o) {
    for (int d = 0; d < o.x.rank(); ++d) {
      int64_t& known = size(o.axes[size_t(d)]);
      const int64_t here = o.x.size(d);
      check(known < 0 || known == here || known == 1 || here == 1, "sizes of {} differ: {} and {}",
            name(o.axes[size_t(d)]), known, here);
      if (known < 0 || known == 1) known = here;
    }
  }
  Axes implied_result(int dots) const {
    Axes all;
    for (const Operand& o : operands_) all.insert(all.end(), o.axes.begin(), o.axes.end());
    Axes once = only(all, [&](Axis a) { return a > 0 && std::ranges::count(all, a) == 1; });
    std::sort(once.begin(), once.end());
    for (Axis a = -1; a >= -dots; --a) once.insert(once.begin(), a);
    return once;
  }

  // Takes diagonals and drops dimensions of size 1 that broadcast to larger ones.
  void simplify(Operand& o) {
    for (int b = 1; b < int(o.axes.size()); ++b) {
      const int a = int(std::ranges::find(o.axes, o.axes[size_t(b)]) - o.axes.begin());
      if (a == b) continue;
      check(o.x.size(a) == o.x.size(b), "sizes of {} differ: {} and {}", name(o.axes[size_t(a)]),
            o.x.size(a), o.x.size(b));
      o.take_diagonal(a, b);
      b = 0;
    }
    for (int d = int(o.axes.size()) - 1; d >= 0; --d)
      if (o.x.size(d) == 1 && size(o.axes[size_t(d)]) != 1) {
        o.x = squeeze(o.x, d);
        o.axes.erase(o.axes.begin() + d);
      }
  }

  // True if there is a sum before the product, or a second product.
  bool takes_steps() const {
    const size_t n = operands_.size();
    return n > 2 ||
           (n == 2 && std::ranges::any_of(sizes_, [&](const auto& axis) {
              return !contains(result_, axis.first) && contains(operands_[0].axes, axis.first) !=
                                                           contains(operands_[1].axes, axis.first);
            }));
  }

  Operand extract(size_t i) {
    Operand o = std::move(operands_[i]);
    operands_.erase(operands_.begin() + int64_t(i));
    return o;
  }

  // The pair whose product takes the fewest multiplications.
  std::pair<size_t, size_t> cheapest_pair() {
    std::pair<size_t, size_t> best;
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < operands_.size(); ++i)
      for (size_t j = i + 1; j < operands_.size(); ++j) {
        double cost = 1;
        for (const Axis a : operands_[i].axes) cost *= double(size(a));
        for (const Axis a : operands_[j].axes)
          if (!contains(operands_[i].axes, a)) cost *= double(size(a));
        if (cost >= least) continue;
        least = cost;
        best = {i, j};
      }
    return best;
  }

  // Multiplies a and b, which were taken from operands_.
  Operand multiply(Operand a, Operand b) {
    const auto needed = [&](Axis axis) {
      return contains(result_, axis) || std::ranges::any_of(operands_, [&](const Operand& o) {
               return contains(o.axes, axis);
             });
    };
    a.sum_all_but([&](Axis axis) { return needed(axis) || contains(b.axes, axis); });
    b.sum_all_but([&](Axis axis) { return needed(axis) || contains(a.axes, axis); });
    const auto in_both = [&](Axis axis) { return contains(b.axes, axis); };
    const Axes batch = only(a.axes, [&](Axis x) { return in_both(x) && needed(x); });
    const Axes summed = only(a.axes, [&](Axis x) { return in_both(x) && !needed(x); });
    const Axes of_a = only(a.axes, [&](Axis x) { return !in_both(x); });
    const Axes of_b = only(b.axes, [&](Axis x) { return !contains(a.axes, x); });

    Axes axes = batch;
    axes.insert(axes.end(), of_a.begin(), of_a.end());
    axes.insert(axes.end(), of_b.begin(), of_b.end());
    const Tensor left = matrices(a, batch, of_a, summed), right = matrices(b, batch, summed, of_b);
    Shape shape;
    for (const Axis axis : axes) shape.push_back(size(axis));
    return {reshape(summed.empty() ? mul(left, right) : matmul(left, right), shape), axes};
  }

  // The operand as matrices [batch..., rows, columns]; if there are many batch dimensions, they are
  // merged.
  Tensor matrices(const Operand& o, const Axes& batch, const Axes& rows, const Axes& columns) {
    Axes order = batch;
    order.insert(order.end(), rows.begin(), rows.end());
    order.insert(order.end(), columns.begin(), columns.end());
    Shape shape;
    if (batch.size() + 2 > size_t(max_rank))
      shape.push_back(size(batch));
    else
      for (const Axis axis : batch) shape.push_back(size(axis));
    shape.push_back(size(rows));
    shape.push_back(size(columns));
    return reshape(o.permuted(order), shape);
  }

  std::vector<Operand> operands_;
  Axes result_;
  std::map<Axis, int64_t> sizes_;  // -1: no operand has it
};

}  // namespace

Tensor einsum(std::string_view equation, const std::vector<Tensor>& operands) {
  const Scope scope("einsum");
  std::string text(equation);
  std::erase(text, ' ');
  return Einsum(text, operands).run();
}

Tensor tensordot(const Tensor& a, const Tensor& b, const Dims& of_a, const Dims& of_b) {
  const Scope scope("tensordot");
  check(of_a.size() == of_b.size(), "as many dimensions of both must be named, got {} and {}",
        of_a.size(), of_b.size());
  std::string left, right, kept;  // the letters of einsum
  for (int d = 0; d < a.rank(); ++d) left += char('a' + d);
  for (int d = 0; d < b.rank(); ++d) right += char('A' + d);
  for (size_t i = 0; i < of_a.size(); ++i) {
    const int from = wrap_dim(of_a[i], a.rank()), to = wrap_dim(of_b[i], b.rank());
    char &letter = left[size_t(from)], &other = right[size_t(to)];
    check(right.find(letter) == right.npos && other < 'a',
          "dimension {} of {} or {} of {} is given twice", from, a.shape(), to, b.shape());
    check(a.size(from) == b.size(to),
          "dimension {} of shape {} has another size than dimension {} of {}", from, a.shape(), to,
          b.shape());
    other = letter;
  }
  for (const char c : left)
    if (right.find(c) == right.npos) kept += c;
  for (const char c : right)
    if (c < 'a') kept += c;
  return einsum(left + ',' + right + "->" + kept, {a, b});
}
Tensor tensordot(const Tensor& a, const Tensor& b, int dims) {
  const Scope scope("tensordot");
  const int most = std::min(a.rank(), b.rank());
  check(0 <= dims && dims <= most, "dims must be from 0 to {}, got {}", most, dims);
  Dims last, first;
  for (int d = 0; d < dims; ++d) {
    last.push_back(a.rank() - dims + d);
    first.push_back(d);
  }
  return tensordot(a, b, last, first);
}

Tensor bilinear(const Tensor& x1, const Tensor& x2, const Tensor& weight, const Tensor& bias) {
  const Scope scope("bilinear");
  check(x1.rank() > 0 && x1.rank() == x2.rank(),
        "the inputs must be [..., in1] and [..., in2] with the same dimensions, got {} and {}",
        x1.shape(), x2.shape());
  check(weight.rank() == 3, "the weight has shape {}, not [out, in1, in2]", weight.shape());
  ops::check_shape(bias, "the bias", {weight.size(0)});
  // As in einsum(), f32 rounds the sum with the bias once.
  std::vector<Tensor> factors = {x1, weight, x2};
  const DType dtype = x1.dtype();
  const bool wide = is_half(dtype) && weight.dtype() == dtype && x2.dtype() == dtype &&
                    !ThreadState::current().policy;
  for (Tensor& x : factors) x = wide ? cast(x, f32) : x;
  const Tensor y = einsum("...i,oij,...j->...o", factors);
  const Tensor moved = bias ? y + cast(bias, y.dtype()) : y;
  return wide ? cast(moved, dtype) : moved;
}

}  // namespace mixtape
