// Connectionist temporal classification, made of ops on all targets at once. Each time step adds up
// the paths to each place in the target, where a blank is put around each class.

#include <numeric>

#include "autograd/ops/checks.h"
#include "autograd/ops/gradients.h"
#include "autograd/ops/rows.h"

namespace mixtape {
using namespace internal;
using namespace ops;
namespace {

// The logarithm of the probability that there is no path. (-inf would make gradients NaN.)
constexpr double no_way = -1e30, impossible = -1e29;

// x [n, places] moved by `by` places; no path comes from before the first.
Tensor moved(const Tensor& x, int64_t by) {
  return narrow(pad(x, {by, 0}, PadMode::Constant, no_way), 1, 0, x.size(1));
}
Tensor steps_up_to(int64_t n, const Tensor& like) {
  return arange(0, double(n), 1, i64, like.device());
}

// The logarithm of the probability of each target, [n].
Tensor log_likelihood(const Tensor& p, const Tensor& targets, const Tensor& input_lengths,
                      const Tensor& target_lengths, int64_t blank) {
  const int64_t t = p.size(0), n = p.size(1), s = targets.size(1), places = 2 * s + 1;
  const Tensor used = lt(steps_up_to(s, targets), unsqueeze(target_lengths, 1));
  const Tensor classes = where(used, targets, double(blank));
  check_targets(classes, p.size(2));
  const Tensor pairs = stack({full_like(classes, double(blank)), classes}, 2);
  const Tensor last = full({n, 1}, double(blank), classes.dtype(), classes.device());
  const Tensor at = cat({reshape(pairs, {n, 2 * s}), last}, 1);  // [n, places]
  // A class may follow the one before it without a blank in between if they differ.
  const Tensor before = narrow(pad(at, {2, 0}, PadMode::Constant, double(blank)), 1, 0, places);
  const Tensor jumps = logical_and(ne(at, double(blank)), ne(at, before));
  const Tensor begins = lt(steps_up_to(places, at), 2.0);
  Tensor ways = where(begins, gather(select(p, 0, 0), 1, at), no_way);
  for (int64_t i = 1; i < t; ++i) {
    const Tensor jumped = where(jumps, moved(ways, 2), no_way);
    const Tensor all = logsumexp(stack({ways, moved(ways, 1), jumped}), {0});
    const Tensor next = gather(select(p, 0, i), 1, at) + all;
    ways = where(unsqueeze(gt(input_lengths, double(i)), 1), next, ways);
  }
  const Tensor end = unsqueeze(target_lengths * 2.0, 1);
  const Tensor on_class = where(gt(end, 0), gather(ways, 1, clamp(end - 1.0, 0, {})), no_way);
  const Tensor found = squeeze(logsumexp(cat({gather(ways, 1, end), on_class}, 1), {1}, true), 1);
  // Without steps there is one path to the empty target and none to others.
  const Tensor at_once = where(gt(target_lengths, 0), full_like(found, no_way), 0);
  return where(gt(input_lengths, 0), found, at_once);
}

// Targets that follow each other, [all], as rows [n, longest].
Tensor apart(const Tensor& targets, const Tensor& lengths) {
  const std::vector<int64_t> each = to_vector<int64_t>(lengths);
  const double all = std::reduce(each.begin(), each.end(), 0.0);  // never overflows
  check(all == double(targets.numel()),
        "targets of shape {} for target lengths of {} together, not [n, s]", targets.shape(), all);
  return pad_sequence(split(targets, each), true);
}

}  // namespace

Tensor ctc_loss(const Tensor& log_probabilities, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, const CtcOptions& o) {
  if (log_probabilities.rank() == 2)  // of one input
    return reshape(ctc_loss(unsqueeze(log_probabilities, 1), unsqueeze(targets, 0),
                            as_line(input_lengths), as_line(target_lengths), o),
                   {});
  const Scope scope("ctc_loss");
  if (targets.rank() == 1)
    return ctc_loss(log_probabilities, apart(targets, target_lengths), input_lengths,
                    target_lengths, o);
  check_real(log_probabilities);
  const Shape& shape = log_probabilities.shape();
  check(shape.rank == 3 && shape[0] > 0,
        "log-probabilities of shape {}, not [t, n, classes] or [t, classes]", shape);
  check(targets.rank() == 2 && targets.size(0) == shape[1],
        "targets of shape {} for {} inputs, not [n, s]", targets.shape(), shape[1]);
  check_shape(input_lengths, "the tensor of input lengths", {shape[1]});
  check_shape(target_lengths, "the tensor of target lengths", {shape[1]});
  check(0 <= o.blank && o.blank < shape[2], "blank must be from 0 to {}, got {}", shape[2] - 1,
        o.blank);
  const Tensor classes = as_index(targets, "targets"), inputs = as_index(input_lengths, "lengths"),
               lengths = as_index(target_lengths, "lengths");
  check_lengths(inputs, "input lengths", shape[0]);
  check_lengths(lengths, "target lengths", targets.size(1));
  const auto loss = [&](const Tensor& p) {
    const Tensor found = -log_likelihood(p, classes, inputs, lengths, o.blank);
    const Tensor none = gt(found, -impossible);
    const Tensor each = masked_fill(found, none, o.zero_infinity ? 0 : INFINITY);
    if (o.reduction != Reduction::Mean) return reduce_losses(each, o.reduction);
    return mean(each / cast(clamp(lengths, 1, {}), each.dtype()));
  };
  return in_f32(loss, log_probabilities);
}

}  // namespace mixtape
