#pragma once
// GradientSum: the gradients that reach a node in a backward pass, added up.

#include "autograd/call.h"
#include "autograd/ops.h"
#include "autograd/ops/rows.h"

namespace mixtape::internal {

// The sum of the gradients that reach a node. f16 and bf16 gradients are added in f32 and rounded
// once, when the sum is taken. (Two are added only then, which needs no f32 tensor.)
class GradientSum {
 public:
  void add(Tensor&& g) {
    if (parts_) end_parts();
    if (!sum_)
      sum_ = std::move(g);
    else if (is_half(sum_.dtype()) && !second_)
      second_ = std::move(g);
    else
      accumulate(widened(), g);
  }
  // Adds dy to the part of an input of this shape and dtype that `selection` selects.
  void add_to_part(const Node& selection, const Tensor& dy, const Shape& shape, DType dtype) {
    if (!sum_)
      begin_parts(selection, dy, shape, dtype);
    else if (second_)
      widened();
    const Layout part = layout_of(selection);
    const bool first = parts_ && is_new(part);
    if (!first && parts_) complete();
    if (first && parts_->missing > 0) {
      parts_->missing -= dy.numel();
      parts_->written.push_back(part);
      if (is_same_part(dy, selection.part(sum_))) return;  // already in its place
    }
    if (!first && is_half(sum_.dtype())) widened();
    if (!sum_.is_unique() || !sum_.layout().is_dense()) sum_ = sum_.clone();
    (first ? detail::write : detail::accumulate)(dy, selection.part(sum_));
  }

  // Takes the sum for a rule that adds to it in place, if no other tensor shares it and every term
  // so far had this dtype and covered all of it.
  Tensor take_whole(DType dtype) {
    const bool open = sum_ && !parts_ && sum_.dtype() == dtype && !is_half(dtype) &&
                      sum_.is_unique() && sum_.is_contiguous();
    return open ? std::exchange(sum_, {}) : Tensor();
  }
  Tensor take(DType dtype) {
    if (parts_) end_parts();
    if (second_) accumulate(sum_, std::exchange(second_, {}));
    if (sum_.dtype() != dtype) sum_ = cast(sum_, dtype);
    return std::move(sum_);
  }

 private:
  // Adds g to a sum, in place if no other tensor shares the sum.
  static void accumulate(Tensor& sum, const Tensor& g) {
    if (!grad_enabled() && sum.is_unique() && sum.layout().is_dense())
      detail::accumulate(g, sum);
    else
      sum = mixtape::add(sum, cast(g, sum.dtype()));
  }
  Tensor& widened() {
    if (is_half(sum_.dtype())) sum_ = cast(sum_, f32);
    if (second_) accumulate(sum_, std::exchange(second_, {}));
    return sum_;
  }
  // Makes a tensor for the whole of which dy is a part: on the storage of dy, if a rule has written
  // the gradients of all parts in their places there, or a new one.
  void begin_parts(const Node& selection, const Tensor& dy, const Shape& shape, DType dtype) {
    parts_ = std::make_unique<Parts>();
    parts_->missing = shape.size();
    if (dy.dtype() == dtype && dy.storage()->bytes() == size_t(shape.size()) * size_of(dtype)) {
      sum_ = dy.with_layout(Layout(shape).at_offset(-dy.offset()));
      if (is_same_part(dy, selection.part(sum_))) return;
    }
    if (selection.covers()) {
      sum_ = Tensor(shape, dtype, dy.device());
    } else {
      sum_ = ops::in_order_of(dy, zeros(shape, dtype, dy.device()));
      parts_->missing = 0;
    }
  }
  // Fills elements that no part has written with zeros.
  void complete() {
    if (parts_->missing == 0) return;
    const Tensor whole = zeros(sum_.shape(), sum_.dtype(), sum_.device());
    for (const Layout& part : parts_->written)
      detail::write(sum_.with_layout(part), whole.with_layout(part));
    sum_ = whole;
    parts_->missing = 0;
  }
  void end_parts() {
    complete();
    parts_.reset();
  }
  // The part of the sum that a node selects, counted from the sum's first element.
  Layout layout_of(const Node& selection) const {
    const Tensor part = selection.part(sum_);
    return {part.shape(), part.strides(), part.offset() - sum_.offset()};
  }
  // True if both are the same elements in the same order.
  static bool is_same_part(const Tensor& a, const Tensor& b) {
    bool same = a.storage() == b.storage() && a.dtype() == b.dtype() && a.shape() == b.shape() &&
                a.offset() == b.offset();
    for (int d = 0; same && d < a.rank(); ++d)
      same = a.shape()[d] == 1 || a.strides()[d] == b.strides()[d];
    return same;
  }
  // True if nothing has been added to this part yet; false in doubt.
  bool is_new(const Layout& part) {
    if (part.shape.size() == 0) return true;
    Parts& p = *parts_;
    auto [low, high] = extent(part);
    const auto at = [&](int64_t i, int d) { return i / sum_.strides()[d] % sum_.shape()[d]; };
    if (p.dim == none) {
      p.dim = all;  // or the dimension that this part cuts, along which all others are compared
      for (int d = 0; d < sum_.rank(); ++d)
        if (at(low, d) > 0 || at(high, d) < sum_.shape()[d] - 1) p.dim = d;
      if (p.dim != all) p.first = at(low, p.dim), p.last = at(high, p.dim);
      return true;
    }
    if (p.dim == all) return false;
    low = at(low, p.dim), high = at(high, p.dim);
    const bool apart = high < p.first || low > p.last;
    p.first = std::min(p.first, low), p.last = std::max(p.last, high);
    return apart;
  }

  static constexpr int none = -2, all = -1;
  struct Parts {
    int dim = none;                // they lie along this dimension,
    int64_t first = 0, last = -1;  // between these elements
    int64_t missing = 0;           // elements that no part has written, which are uninitialised
    std::vector<Layout> written;   // the parts, while elements are missing
  };
  Tensor sum_, second_;
  std::unique_ptr<Parts> parts_;  // while the sum consists of parts alone
};

}  // namespace mixtape::internal
