#pragma once
// The forms that a step or an op of a peer may take. A comparison is with the fastest.

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "bench/interleave.h"
#include "bench/machine.h"

namespace mixtape::peers {

struct Form {
  bool channels_last = false, fused = false, sdpa = false, tanh = false;
};
struct Choice {
  const char* name;
  bool Form::* chosen;
};
using Choices = std::vector<Choice>;

// The least time of three calls, after one.
inline double seconds(const bench::Call& call, int threads) {
  call();
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {
    const double start = bench::now(threads);
    call();
    least = std::min(least, bench::now(threads) - start);
  }
  return least;
}

// Tries one choice after the other, and keeps those that take less time. The result says which.
inline bench::Task fastest(const Choices& choices, int threads,
                           const std::function<bench::Call(const Form&)>& make) {
  Form best;
  bench::Task found{make(best), ""};
  double least = choices.empty() ? 0 : seconds(found.call, threads);
  for (const Choice& choice : choices) {
    Form form = best;
    form.*choice.chosen = true;
    bench::Call other = make(form);
    const double time = seconds(other, threads);
    if (time >= least) continue;
    least = time, best = form, found.call = std::move(other);
    found.form += (found.form.empty() ? "" : ", ") + std::string(choice.name);
  }
  return found;
}

}  // namespace mixtape::peers
