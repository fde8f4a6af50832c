// L-BFGS in the order of torch.optim.LBFGS: the same evaluations, and the same tests that end a
// step.
#include "optim/lbfgs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/autograd_meta.h"
#include "autograd/tape.h"
#include "core/check.h"
#include "core/format.h"
#include "core/scope.h"
#include "core/warn.h"
#include "kernels/common/rounding.h"
#include "optim/clip.h"
#include "optim/state_reader.h"

namespace mixtape::optim {
using namespace internal;
using kernels::Rounding;
namespace {

using Vector = std::vector<double>;

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void add(Vector& to, double factor, const Vector& x) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += factor * x[i];
}

void check_finite(const Vector& grad) {
  for (const double g : grad) check(std::isfinite(g), "a gradient is {}, must be finite", g);
}

double largest(const Vector& x) {
  double most = 0;
  for (const double v : x) most = std::max(most, std::abs(v));
  return most;
}

template <class S>
void round_by_chance(std::span<double> x, const Draw& draw) {
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = float(kernels::round_stochastic<S>(float(x[i]), Philox::bits(draw, i / 4)[i % 4]));
}

// The minimum within bounds of the cubic through two points with slopes.
template <class Point>
double cubic_minimum(const Point& a, const Point& b, double low, double high) {
  const double d = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t),
               square = d * d - a.slope * b.slope;
  if (!(square >= 0)) return (low + high) / 2;
  const auto &left = a.t <= b.t ? a : b, &right = a.t <= b.t ? b : a;
  const double root = std::sqrt(square);
  const double t = right.t - (right.t - left.t) * (right.slope + root - d) /
                                 (right.slope - left.slope + 2 * root);
  return std::min(std::max(t, low), high);
}

}  // namespace

LBFGS::LBFGS(std::vector<Tensor> params, const LBFGSOptions& options)
    : options_(options), params_(std::move(params)) {
  const Scope scope("lbfgs");
  check(!params_.empty(), "no parameters to optimize");
  for (size_t i = 0; i < params_.size(); ++i) {
    const Tensor& p = params_[i];
    check(p && is_float(p.dtype()) && p.is_contiguous() && !p.grad_fn(),
          "parameter {} must be a dense float leaf, got {}", i,
          p ? fmt::format("{} {}", p.dtype(), p.shape()) : "no tensor");
    for (size_t k = 0; k < i; ++k)
      check(!p.is_same(params_[k]), "parameter {} is also parameter {}", i, k);
    size_ += p.numel();
  }
  set_lr(options.lr);
  check(options.max_iter > 0, "max_iter must be > 0, got {}", options.max_iter);
  check(options.max_eval >= 0, "max_eval must be >= 0, got {}", options.max_eval);
  check(options.tolerance_grad >= 0 && options.tolerance_change >= 0,
        "tolerances must be >= 0, got {} and {}", options.tolerance_grad, options.tolerance_change);
  check(options.history_size > 0, "history_size must be > 0, got {}", options.history_size);
  if (options.rounding == Rounding::Kahan) lost_.resize(size_t(size_));
  if (options.max_eval == 0) options_.max_eval = std::min(options.max_iter, INT64_MAX / 5) * 5 / 4;
}

void LBFGS::set_lr(double lr) {
  check(lr > 0 && std::isfinite(lr), "lr must be > 0 and finite, got {}", lr);
  options_.lr = lr;
}

void LBFGS::zero_grad() {
  for (const Tensor& p : params_) p.set_grad({});
}

double LBFGS::evaluate(const Closure& closure) {
  ++evaluations_;
  const Tensor loss = closure();
  check(loss && loss.numel() == 1, "the closure must return one number, got {}",
        loss ? loss.shape().to_string() : "no tensor");
  return loss.item();
}

Vector LBFGS::gradient() const {
  Vector all;
  all.reserve(size_t(size_));
  for (const Tensor& p : params_) {
    if (!p.has_grad()) {
      all.resize(all.size() + size_t(p.numel()));
      continue;
    }
    check(p.autograd_meta().loss_scale().number == 0,
          "gradients are multiplied by a loss scale: call backward() of the loss itself");
    const Tensor g = dense_copy(dense_grad(p), f64, Device::cpu());
    all.insert(all.end(), g.data<double>(), g.data<double>() + g.numel());
  }
  return all;
}

Vector LBFGS::values() const {
  Vector all;
  all.reserve(size_t(size_));
  for (const Tensor& p : params_) {
    const Tensor x = dense_copy(p, f64, Device::cpu());
    const size_t first = all.size();
    all.insert(all.end(), x.data<double>(), x.data<double>() + x.numel());
    if (lost_.empty() || !is_half(p.dtype())) continue;
    // The loss belongs to the value that it led to, unless other code wrote another.
    const Tensor sum = dense_copy(x, f64, Device::cpu());
    for (size_t i = first; i < all.size(); ++i) sum.data<double>()[i - first] += lost_[i];
    const Tensor rounded = dense_copy(dense_copy(sum, p.dtype(), sum.device()), f64, sum.device());
    for (size_t i = first; i < all.size(); ++i)
      if (rounded.data<double>()[i - first] == all[i]) all[i] = sum.data<double>()[i - first];
  }
  return all;
}

// (An iteration has its random bits, so that the end of a line search is what it has evaluated.)
void LBFGS::set_values(const Vector& x, double t, const Vector& d) {
  size_t at = 0;
  for (size_t k = 0; k < params_.size(); ++k) {
    const Tensor& p = params_[k];
    const Tensor moved(p.shape(), f64, Device::cpu());
    const std::span<double> v(moved.data<double>(), size_t(p.numel()));
    for (size_t i = 0; i < v.size(); ++i) v[i] = t == 0 ? x[at + i] : x[at + i] + t * d[at + i];
    if (options_.rounding == Rounding::Stochastic && is_half(p.dtype())) {
      const Draw draw =
          kernels::LowMemory::draw(options_.seed, uint32_t(k), float(iterations_), false);
      p.dtype() == f16 ? round_by_chance<Half>(v, draw) : round_by_chance<BFloat16>(v, draw);
    }
    mixtape::detail::write(moved.copied_to(p.device()), p);
    if (!lost_.empty()) {
      const Tensor now = dense_copy(p, f64, Device::cpu());
      for (size_t i = 0; i < v.size(); ++i) lost_[at + i] = v[i] - now.data<double>()[i];
    }
    at += v.size();
  }
}

// Adds the last step and the change of the gradient in it to the history.
void LBFGS::remember(const Vector& grad) {
  Pair pair{grad, direction_, 0};
  add(pair.y, -1, last_grad_);
  for (double& v : pair.s) v *= step_;
  const double ys = dot(pair.y, pair.s);
  if (!(ys > 1e-10)) return;
  pair.rho = 1 / ys;
  diagonal_ = ys / dot(pair.y, pair.y);
  if (std::ssize(history_) == options_.history_size) history_.erase(history_.begin());
  history_.push_back(std::move(pair));
}

// -H grad, with H from the two loops over the history.
Vector LBFGS::direction(const Vector& grad) const {
  Vector q(grad.size()), shares(history_.size());
  add(q, -1, grad);
  for (size_t i = history_.size(); i-- > 0;) {
    shares[i] = dot(history_[i].s, q) * history_[i].rho;
    add(q, -shares[i], history_[i].y);
  }
  for (double& v : q) v *= diagonal_;
  for (size_t i = 0; i < history_.size(); ++i)
    add(q, shares[i] - dot(history_[i].y, q) * history_[i].rho, history_[i].s);
  return q;
}

// A point where the strong Wolfe conditions hold, or the best after 25 evaluations (Nocedal &
// Wright, algorithms 3.5 and 3.6).
LBFGS::Point LBFGS::search(const Closure& closure, const Vector& x, const Point& start, double t) {
  constexpr double enough_decrease = 1e-4, enough_flat = 0.9;
  constexpr int most = 25;
  const auto try_out = [&](double at) {
    set_values(x, at, direction_);
    const double loss = evaluate(closure);
    Vector grad = gradient();
    const double slope = dot(grad, direction_);
    return Point{at, loss, std::move(grad), slope};
  };
  const auto is_too_high = [&](const Point& p) {
    return p.loss > start.loss + enough_decrease * p.t * start.slope;
  };
  const auto is_flat = [&](const Point& p) {
    return std::abs(p.slope) <= -enough_flat * start.slope;
  };
  Point now = try_out(t), last = start;
  int tries = 0;
  bool bracketed = false;
  for (; tries < most && !bracketed; ++tries) {
    bracketed = is_too_high(now) || (tries > 1 && now.loss >= last.loss);
    if (!bracketed && is_flat(now)) return now;
    bracketed = bracketed || now.slope >= 0;
    if (bracketed) break;
    const double next = cubic_minimum(last, now, now.t + 0.01 * (now.t - last.t), now.t * 10);
    last = std::move(now);
    now = try_out(next);
  }
  if (tries == most) last = start;
  // Zooms in between an end with a lower and one with a higher loss.
  Point low = last.loss <= now.loss ? last : now, high = last.loss <= now.loss ? now : last;
  bool was_near_end = false;
  const double longest = largest(direction_);
  while (tries < most && std::abs(high.t - low.t) * longest >= options_.tolerance_change) {
    const auto [left, right] = std::minmax(low.t, high.t);
    double at = cubic_minimum(low, high, left, right);
    const double margin = 0.1 * (right - left);
    const bool is_near_end = std::min(right - at, at - left) < margin,
               moves = is_near_end && (was_near_end || at >= right || at <= left);
    if (moves) at = std::abs(at - right) < std::abs(at - left) ? right - margin : left + margin;
    was_near_end = is_near_end && !moves;
    now = try_out(at);
    ++tries;
    if (is_too_high(now) || now.loss >= low.loss) {
      high = std::move(now);
      if (high.loss < low.loss) std::swap(low, high);
      continue;
    }
    const bool done = is_flat(now);
    if (!done && now.slope * (high.t - low.t) >= 0) high = std::move(low);
    low = std::move(now);
    if (done) break;
  }
  return low;
}

double LBFGS::step(const Closure& closure) {
  const Scope scope("lbfgs");
  check(closure != nullptr, "step() needs a closure that returns the loss");
  const double first_loss = evaluate(closure);
  if (std::ranges::none_of(params_, &Tensor::has_grad))
    warn("lbfgs: a step without gradients changes nothing: the closure must call backward()");
  double loss = first_loss;
  Vector grad = gradient();
  check_finite(grad);
  if (largest(grad) <= options_.tolerance_grad) return first_loss;
  const int64_t before = evaluations_ - 1;
  for (int64_t i = 1; i <= options_.max_iter; ++i) {
    if (++iterations_ > 1) remember(grad);
    direction_ = direction(grad);
    last_grad_ = grad;
    const double last_loss = loss, slope = dot(grad, direction_);
    double norm = 0;
    for (const double v : grad) norm += std::abs(v);
    step_ = (iterations_ == 1 ? std::min(1.0, 1 / norm) : 1) * options_.lr;
    if (slope > -options_.tolerance_change) break;
    const Vector x = values();
    try {
      if (options_.line_search == LineSearch::StrongWolfe) {
        Point end = search(closure, x, {0, loss, grad, slope}, step_);
        step_ = end.t, loss = end.loss, grad = std::move(end.grad);
        set_values(x, step_, direction_);
      } else {
        set_values(x, step_, direction_);
        if (i == options_.max_iter) break;
        loss = evaluate(closure);
        grad = gradient();
      }
      check_finite(grad);
    } catch (...) {
      set_values(x, 0, direction_);
      --iterations_;
      throw;
    }
    if (evaluations_ - before >= options_.max_eval || largest(grad) <= options_.tolerance_grad ||
        largest(direction_) * step_ <= options_.tolerance_change ||
        std::abs(loss - last_loss) < options_.tolerance_change)
      break;
  }
  return first_loss;
}

StateDict LBFGS::state_dict() const {
  const auto tensor = [&](const Vector& v) { return from(v, {int64_t(v.size())}, f64); };
  StateDict dict{{"iterations", from_number(double(iterations_))},
                 {"evaluations", from_number(double(evaluations_))},
                 {"step", from_number(step_)},
                 {"diagonal", from_number(diagonal_)},
                 {"lr", from_number(options_.lr)},
                 {"history", from_number(double(history_.size()))}};
  if (!lost_.empty()) dict.emplace_back("compensation", tensor(lost_));
  if (iterations_ > 0) {
    dict.emplace_back("direction", tensor(direction_));
    dict.emplace_back("last_grad", tensor(last_grad_));
  }
  for (size_t i = 0; i < history_.size(); ++i) {
    dict.emplace_back(fmt::format("history.{}.y", i), tensor(history_[i].y));
    dict.emplace_back(fmt::format("history.{}.s", i), tensor(history_[i].s));
  }
  return dict;
}

void LBFGS::load_state_dict(const StateDict& dict) {
  const Scope scope("lbfgs");
  StateReader reader(dict);
  const auto vector = [&](const std::string& name) {
    const Tensor t = reader.copy_of(name, {size_}, f64, Device::cpu());
    check(bool(t), "{} is missing", name);
    return to_vector(t);
  };
  const int64_t iterations = reader.count("iterations"), evaluations = reader.count("evaluations");
  const int64_t pairs = reader.count("history", options_.history_size);
  const double step = reader.number("step"), diagonal = reader.number("diagonal"),
               lr = reader.number("lr");
  Vector direction, last_grad, lost;
  if (!lost_.empty()) lost = vector("compensation");
  if (iterations > 0) direction = vector("direction"), last_grad = vector("last_grad");
  std::vector<Pair> history;
  for (int64_t i = 0; i < pairs; ++i) {
    Pair pair{vector(fmt::format("history.{}.y", i)), vector(fmt::format("history.{}.s", i)), 0};
    pair.rho = 1 / dot(pair.y, pair.s);
    history.push_back(std::move(pair));
  }
  reader.check_all_read();
  set_lr(lr);
  iterations_ = iterations, evaluations_ = evaluations;
  step_ = step, diagonal_ = diagonal;
  direction_ = std::move(direction), last_grad_ = std::move(last_grad), lost_ = std::move(lost);
  history_ = std::move(history);
}

}  // namespace mixtape::optim
