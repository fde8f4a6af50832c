#pragma once
// Blocks: a parameter, its gradient and its states in f32 or f64, in which steps are taken,
// whatever they are stored in. What has another dtype is converted, a block at a time, and back.

#include <concepts>

#include "kernels/common/update.h"
#include "kernels/cpu/loops/rows.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

struct Writes {  // what a pass over a parameter stores
  bool param = true, states = true;
};

// The numbers of a block, in buffers or where they are stored. States that are absent are null.
template <class P, class G>
struct BlockAt {
  P* param;
  const G* grad;
  math_t<P>* state[Update::max_states];
};
template <class P, class G>
BlockAt<P, G> as_stored_at(const Update& u, int64_t begin) {
  BlockAt<P, G> at{u.param.as<P>() + begin, u.grad.as<G>() + begin, {}};
  for (size_t k = 0; k < Update::max_states; ++k)
    if (u.state[k]) at.state[k] = u.state[k].as<math_t<P>>() + begin;
  return at;
}

// y[begin + i] = x[i]
template <class T>
void convert_into(const View& y, int64_t begin, int64_t n, const T* x) {
  visit_float(y.dtype, [&]<class S>() { convert_run(x, n, y.as<S>() + begin); });
}

// A parameter of dtype P with a gradient of dtype G, and states of P's arithmetic: one block.
template <class P, class G>
class Blocks {
 public:
  explicit Blocks(const Update& u) : update_(u) {}
  int64_t length(int64_t n) const { return n; }
  BlockAt<P, G> load(int64_t begin, int64_t) const { return as_stored_at<P, G>(update_, begin); }
  void store(int64_t begin, int64_t n, const BlockAt<P, G>& at, double, Writes writes) const {
    if (writes.param && update_.shadow) convert_into(update_.shadow, begin, n, at.param);
  }

 private:
  const Update& update_;
};

// Any other: what is not stored as f32 (f64) is converted, block by block.
template <std::floating_point T>
class Blocks<T, T> {
 public:
  explicit Blocks(const Update& u)
      : update_(u),
        is_stored_(!u.low && u.param.dtype == dtype_of<T>() && u.grad.dtype == dtype_of<T>()) {}
  // The elements of a block, out of n.
  int64_t length(int64_t n) const { return is_stored_ ? n : code_block; }
  // Elements [begin, begin + n) of the parameter.
  BlockAt<T, T> load(int64_t begin, int64_t n) {
    return is_stored_ ? as_stored_at<T, T>(update_, begin) : converted(begin, n);
  }
  // Also writes the parameter's shadow.
  void store(int64_t begin, int64_t n, const BlockAt<T, T>& at, double steps, Writes writes) const {
    if (writes.param && update_.shadow) convert_into(update_.shadow, begin, n, at.param);
    if (!is_stored_) convert_back(begin, n, at, steps, writes);
  }

 private:
  BlockAt<T, T> converted(int64_t begin, int64_t n);
  void convert_back(int64_t begin, int64_t n, const BlockAt<T, T>& at, double steps,
                    Writes writes) const;

  const Update& update_;
  bool is_stored_;
  alignas(64) T param_[code_block];
  alignas(64) T grad_[code_block];
  alignas(64) T state_[Update::max_states][code_block];
};
template <>
BlockAt<double, double> Blocks<double, double>::converted(int64_t begin, int64_t n);
template <>
void Blocks<double, double>::convert_back(int64_t begin, int64_t n,
                                          const BlockAt<double, double>& at, double steps,
                                          Writes writes) const;

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
