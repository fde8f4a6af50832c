#pragma once
// GradientSum: the gradients that reach a node in a backward pass, added up.

#include "autograd/call.h"
#include "autograd/ops.h"
#include "kernels/kernels.h"

namespace mixtape::internal {

// The sum of the gradients that reach a node. Those in f16 or bf16 are added in f32 and rounded
// once, when the sum is taken: two of them only then, which needs no f32.
class GradientSum {
 public:
  void add(Tensor g) {
    complete();
    dim_ = all;
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
    const bool first = is_new(part);
    if (!first) complete();
    if (first && missing_ > 0) {
      missing_ -= dy.numel();
      written_.push_back(part);
      if (is_same_part(dy, selection.part(sum_))) return;  // it is where it belongs
    }
    if (!first && is_half(sum_.dtype())) widened();
    if (!sum_.is_unique() || !sum_.is_contiguous()) sum_ = sum_.clone();
    (first ? write : detail::accumulate)(dy, selection.part(sum_));
  }

  // Takes the sum for a rule that adds to it in place, if nobody else sees it and each term of this
  // dtype is added to all of it.
  Tensor take_whole(DType dtype) {
    const bool whole = sum_ && dim_ == all && missing_ == 0 && written_.empty();
    const bool open = whole && sum_.dtype() == dtype && !is_half(dtype) && sum_.is_unique() &&
                      sum_.is_contiguous();
    return open ? std::exchange(sum_, {}) : Tensor();
  }
  Tensor take(DType dtype) {
    complete();
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
  // Makes room for the whole of which dy is a part: the storage of dy, if a rule has written the
  // gradients of all parts where they belong, or a new one.
  void begin_parts(const Node& selection, const Tensor& dy, const Shape& shape, DType dtype) {
    dim_ = no_part;
    missing_ = shape.size();
    if (dy.dtype() == dtype && dy.storage()->bytes() == size_t(missing_) * size_of(dtype)) {
      sum_ = dy.with_layout(Layout(shape, Layout(shape).strides, -dy.offset()));
      if (is_same_part(dy, selection.part(sum_))) return;
    }
    if (selection.covers()) {
      sum_ = Tensor(shape, dtype, dy.device());
    } else {
      sum_ = zeros(shape, dtype, dy.device());
      missing_ = 0;
    }
  }
  // Fills what no part has written with zeros.
  void complete() {
    if (missing_ == 0) return;
    const Tensor all = zeros(sum_.shape(), sum_.dtype(), sum_.device());
    for (const Layout& part : written_) write(sum_.with_layout(part), all.with_layout(part));
    sum_ = all;
    missing_ = 0;
  }
  static void write(const Tensor& from, const Tensor& to) {
    to.storage()->begin_write();
    kernels::convert(to.device(), from, to);
    to.storage()->bump_version();
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
    int64_t low = part.offset, high = low;
    for (int d = 0; d < part.rank(); ++d) high += (part.shape[d] - 1) * part.strides[d];
    const auto at = [&](int64_t i, int d) { return i / sum_.strides()[d] % sum_.shape()[d]; };
    if (dim_ == no_part) {
      dim_ = all;  // or one that this part cuts, along which all others are compared with it
      for (int d = 0; d < sum_.rank(); ++d)
        if (at(low, d) > 0 || at(high, d) < sum_.shape()[d] - 1) dim_ = d;
      if (dim_ != all) first_ = at(low, dim_), last_ = at(high, dim_);
      return true;
    }
    if (dim_ == all) return false;
    low = at(low, dim_), high = at(high, dim_);
    const bool apart = high < first_ || low > last_;
    first_ = std::min(first_, low), last_ = std::max(last_, high);
    return apart;
  }

  static constexpr int all = -1, no_part = -2;
  Tensor sum_, second_;
  int dim_ = all;                  // the sum is made of parts that lie, along this dimension,
  int64_t first_ = 0, last_ = -1;  // between these elements
  int64_t missing_ = 0;            // elements that no part has written: they are not even zeros
  std::vector<Layout> written_;    // the parts, while elements are missing
};

}  // namespace mixtape::internal
