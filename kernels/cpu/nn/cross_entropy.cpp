// Cross-entropy of rows of logits with classes or probabilities.

#include <cstring>

#include "kernels/common/visit_narrow.h"
#include "kernels/cpu/nn/softmax.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

// The weighted target distribution q = w ((1 - smoothing) p + smoothing / n) over classes. For a
// class index, most of it is at that class.
template <class T>
class Targets {
 public:
  Targets(Launch& launch, In target, In w, int64_t ignore, double smoothing, int64_t n)
      : target_(target),
        w_(to_dense<T>(launch, w)),
        ignore_(ignore),
        n_(n),
        keep_(static_cast<T>(1 - smoothing)),
        even_(static_cast<T>(smoothing / static_cast<double>(n))) {
    if (are_probabilities() || smoothing == 0) return;
    T* const q = launch.scratch<T>(n);
    for (int64_t i = 0; i < n; ++i) q[i] = w_ ? w_[i] * even_ : even_;
    even_q_ = q;
  }

  bool are_probabilities() const { return is_float(target_.dtype); }

  struct Row {
    int64_t at = -1;       // the target class; -1: none
    T mass = 0;            // added to q at that class
    const T* q = nullptr;  // for all classes; null: zeros
    bool ignored() const { return at < 0 && !q; }
  };
  Row row(int64_t r, T* buffer) const {
    if (are_probabilities()) {
      visit_float(target_.dtype, [&]<class P>() { spread(target_.as<P>() + r * n_, buffer); });
      return {.q = buffer};
    }
    const int64_t at = target_.as<int64_t>()[r];
    if (at == ignore_) return {};
    return {at, w_ ? w_[at] * keep_ : keep_, even_q_};
  }
  // Reads probabilities to a buffer of columns.
  void gather(const Columns<T>& c, T* q) const {
    if (are_probabilities()) c.gather(target_, q);
  }
  // Replaces them by q, or sets it, for `count` rows from `first` on; returns which are not
  // ignored.
  Mask<T> spread(int64_t first, int64_t count, Column<T> q) const {
    using L = Vec<T>;
    typename detail::Vector<T>::integer at{};
    using Class = std::decay_t<decltype(at[0])>;
    if (are_probabilities()) {
      for (int64_t i = 0; i < n_; ++i) {
        const L smoothed = q[i] * L(keep_) + L(even_);
        q.set(i, w_ ? smoothed * L(w_[i]) : smoothed);
      }
      return {at == 0};
    }
    const int64_t* const target = target_.as<int64_t>() + first;
    Class named[L::width];
    for (int64_t k = 0; k < L::width; ++k)
      named[k] = k < count && target[k] != ignore_ ? static_cast<Class>(target[k]) : -1;
    std::memcpy(&at, named, sizeof at);
    const Mask<T> counts{at >= 0};
    for (int64_t i = 0; i < n_; ++i) {
      const T others = even_q_ ? even_q_[i] : T(0), mass = w_ ? w_[i] * keep_ : keep_;
      const L all = select(Mask<T>{at == static_cast<Class>(i)}, L(mass + others), L(others));
      q.set(i, select(counts, all, L(T(0))));
    }
    return counts;
  }

 private:
  template <class P>
  void spread(const P* p, T* q) const {
    for_each_vec<T>(n_, [&](int64_t i, int64_t count) {
      const Vec<T> smoothed = read<T>(p + i, count) * Vec<T>(keep_) + Vec<T>(even_);
      write(q + i, w_ ? smoothed * read<T>(w_ + i, count) : smoothed, count);
    });
  }

  const View& target_;
  const T* const w_;
  const int64_t ignore_, n_;
  const T keep_, even_;
  const T* even_q_ = nullptr;
};

template <class T>
void cross_entropy_of_columns(const Targets<T>& targets, In x, Out loss, Out lse) {
  using L = Vec<T>;
  const int64_t n = x.shape()[-1];
  Columns<T>::visit(x, 2 * n + 5, [&](const Columns<T>& c, T* buffer) {
    T *const spread = buffer + c.size(n), *const kept = spread + c.size(n),
             *const losses = kept + c.size(4);
    c.gather(x, buffer);
    targets.gather(c, spread);
    c.each([&](int64_t j, int64_t count) {
      const Column<T> v = c.column(buffer, j, n), q = c.column(spread, j, n),
                      out = c.column(kept, j, 4);
      targets.spread(c.first + j, count, q);
      const L top = column_max(v), log_sum = column_log_sum(v, top);
      L value(T(0)), total(T(0));
      for (int64_t i = 0; i < n; ++i) {
        const L part = q[i], lost = top - v[i] + log_sum;
        value += select(part == T(0), L(T(0)), part * lost);  // also if p is 0
        total += part;
      }
      const Mask<T> likely = is_likely(true, -log_sum);
      L others(T(0));
      if (any(likely)) {
        for (int64_t i = 0; i < n; ++i) others += select(v[i] == top, L(T(0)), q[i]);
        others = select(likely, others, L(T(0)));
      }
      out.set(0, top);
      out.set(1, log_sum);
      out.set(2, total);
      out.set(3, others);
      store(losses + j, value);
    });
    c.scatter(kept, lse);
    c.scatter_each(losses, loss);
  });
}

template <class T>
void cross_entropy_grad_of_columns(const Targets<T>& targets, In x, In lse, const T* dloss,
                                   Out dx) {
  using L = Vec<T>;
  const int64_t n = x.shape()[-1];
  Columns<T>::visit(x, 2 * n + 4, [&](const Columns<T>& c, T* buffer) {
    T *const spread = buffer + c.size(n), *const kept = spread + c.size(n);
    c.gather(x, buffer);
    c.gather(lse, kept);
    targets.gather(c, spread);
    c.each([&](int64_t j, int64_t count) {
      const Column<T> v = c.column(buffer, j, n), q = c.column(spread, j, n),
                      in = c.column(kept, j, 4);
      const Mask<T> counts = targets.spread(c.first + j, count, q);
      const L top = in[0], log_sum = in[1], total = in[2],
              scale = read<T>(dloss + c.first + j, count);
      const Mask<T> likely = is_likely(true, -log_sum);
      const bool some = any(likely);
      const L at_top = some ? logit_slope(-log_sum, total, total, in[3]) : total;
      for (int64_t i = 0; i < n; ++i) {
        const L below = v[i] - top;
        L d = exp(below - log_sum) * total - q[i];
        if (some) d = select(likely & (below == L(T(0))), at_top, d);
        v.set(i, select(counts, scale * d, L(T(0))));
      }
    });
    c.scatter(buffer, dx);
  });
}

}  // namespace

// With log p = x - top - log_sum: loss = -sum(q log p).
void cross_entropy(Launch& launch, In x, In target, In w, int64_t ignore, double smoothing,
                   Out loss, Out lse) {
  const int64_t n = x.shape()[-1], rows = loss.size();
  visit_float(x.dtype, loss.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const Targets<T> targets(launch, target, w, ignore, smoothing, n);
    if (takes_columns<T>(x)) return cross_entropy_of_columns<T>(targets, x, loss, lse);
    parallel_ranges(rows, grain_of(n), [&](int64_t begin, int64_t end) {
      Buffer<T> buffer(targets.are_probabilities() ? n : 0);
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        const auto row = targets.row(r, buffer.data());
        const T top = row_max<T>(in, n);
        const T log_sum = row_log_sum<T>(in, n, top);
        const bool likely = is_likely(true, -log_sum);
        T value(0), total(row.mass), others(0);
        if (row.mass != T(0)) {
          const T below_top = top - static_cast<T>(in[row.at]);
          value = row.mass * (below_top + log_sum);
          if (likely && below_top != T(0)) others = row.mass;
        }
        if (row.q) {
          const auto [sum, sum_q] = sums_over<T, 2>(n, [&](int64_t i, int64_t count, auto& sums) {
            const Vec<T> part = read<T>(row.q + i, count);
            const Vec<T> lost = Vec<T>(top) - read<T>(in + i, count) + Vec<T>(log_sum);
            sums[0] += select(part == T(0), Vec<T>(T(0)), part * lost);  // also if p is 0
            sums[1] += part;
          });
          value += static_cast<T>(sum);
          total += static_cast<T>(sum_q);
          if (likely)
            others += static_cast<T>(sum_over<T>(n, [&](int64_t i, int64_t count) {
              const Mask<T> is_top = read<T>(in + i, count) == Vec<T>(top);
              return select(is_top, Vec<T>(T(0)), read<T>(row.q + i, count));
            }));
        }
        T* const kept = lse.as<T>() + 4 * r;
        kept[0] = top;
        kept[1] = log_sum;
        kept[2] = total;
        kept[3] = others;
        loss.as<O>()[r] = static_cast<O>(value);
      }
    });
  });
}

// dx = dloss (p sum(q) - q)
void cross_entropy_grad(Launch& launch, In x, In target, In w, In lse, In dloss, int64_t ignore,
                        double smoothing, Out dx) {
  const int64_t n = x.shape()[-1], rows = dloss.size();
  visit_float_or_narrow(x.dtype, dx.dtype, [&]<class S, class O>() {
    using T = math_t<S>;
    const T* const scale = to_dense<T>(launch, dloss);
    const Targets<T> targets(launch, target, w, ignore, smoothing, n);
    if (takes_columns<T>(x)) return cross_entropy_grad_of_columns<T>(targets, x, lse, scale, dx);
    parallel_ranges(rows, grain_of(n), [&](int64_t begin, int64_t end) {
      Buffer<T> buffer(targets.are_probabilities() ? n : 0);
      for (int64_t r = begin; r < end; ++r) {
        const S* const in = x.as<S>() + r * n;
        O* const out = dx.as<O>() + r * n;
        const auto row = targets.row(r, buffer.data());
        if (row.ignored()) {
          std::fill_n(out, n, O(0.0f));
          continue;
        }
        const T* const kept = lse.as<T>() + 4 * r;
        const T top = kept[0], log_sum = kept[1], total = kept[2], others = kept[3];
        const bool likely = row.q && is_likely(true, -log_sum);
        const Vec<T> at_top(likely ? logit_slope(-log_sum, total, total, others) : T(0));
        const T at_target =
            row.at < 0 ? T(0) : static_cast<T>(in[row.at]);  // before it is replaced
        for_each_vec<T>(n, [&](int64_t i, int64_t count) {
          const Vec<T> below = read<T>(in + i, count) - Vec<T>(top);
          Vec<T> d = exp(below - Vec<T>(log_sum)) * Vec<T>(total);
          if (row.q) d = d - read<T>(row.q + i, count);
          if (likely) d = select(below == Vec<T>(T(0)), at_top, d);
          write(out + i, Vec<T>(scale[r]) * d, count);
        });
        if (row.at < 0) continue;
        const T wanted = row.mass + (row.q ? row.q[row.at] : T(0));
        const T d = logit_slope(at_target - top - log_sum, wanted, total, others);
        out[row.at] = static_cast<O>(scale[r] * d);
      }
    });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
