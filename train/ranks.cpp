#include "train/ranks.h"

#include <algorithm>

#include "autograd/ops.h"
#include "dist/data_parallel.h"
#include "kernels/kernels.h"

namespace mixtape::train {
namespace {

// This thread's World if it has several ranks, else null.
const dist::World* ranks() {
  const dist::World* const world = dist::World::current();
  return world && world->size() > 1 ? world : nullptr;
}

}  // namespace

bool is_first_rank() { return !ranks() || ranks()->is_first(); }

double largest_of_ranks(double x) {
  if (!ranks()) return x;
  for (const Tensor& t : ranks()->gather(from({x}, {}, f64))) x = std::max(x, t.item());
  return x;
}

void on_first_rank(const std::function<void()>& f) {
  if (!ranks()) return f();
  std::exception_ptr error;
  std::string text;
  if (ranks()->is_first()) try {
      f();
    } catch (const std::exception& e) {
      error = std::current_exception();
      text = e.what();
      if (text.empty()) text = "an exception without a message";
    }
  text = ranks()->gather(text)[0];
  if (error) std::rethrow_exception(error);
  if (!text.empty()) throw Error(text);
}

StateDict of_first_rank(const StateDict& dict) {
  return ranks() ? ranks()->of_rank(0, dict) : dict;
}

std::vector<Tensor> sum_of_chunks(const std::vector<std::vector<Tensor>>& own) {
  StateDict like;
  for (const auto& chunk : own)
    if (like.empty())
      for (const Tensor& t : chunk) like.emplace_back("", t);
  if (ranks())  // a rank may have no examples at all
    for (const std::string& text : ranks()->gather(dist::detail::described(like)))
      if (like.empty()) like = dist::detail::tensors_of(text);
  int64_t size = 0;
  for (const auto& [name, t] : like) size += t.numel();
  const Tensor flat = zeros({int64_t(own.size()), size}, f64, Device::cpu());
  double* at = flat.data<double>();
  for (const auto& chunk : own) {
    double* next = at;
    for (const Tensor& t : chunk) {
      const Tensor host = t.to(Device::cpu()).contiguous();
      next = std::copy_n(host.data<double>(), host.numel(), next);
    }
    at += size;
  }
  const Tensor all = ranks() ? cat(ranks()->gather(flat)) : flat;
  const Tensor total({size}, f64, Device::cpu());
  kernels::sum_parts(Device::cpu(), all, 1, total);
  std::vector<Tensor> sums;
  int64_t first = 0;
  for (const auto& [name, t] : like) {
    sums.push_back(reshape(narrow(total, 0, first, t.numel()), t.shape()));
    first += t.numel();
  }
  return sums;
}

Batch chunk_of(const Batch& batch, const dist::Part& part, int64_t i) {
  const int64_t n = batch.of_step > 0 ? batch.of_step : batch.x.size(0), begin = part.begin(i, n),
                end = part.begin(i + 1, n), before = part.begin(part.first_chunk(), n);
  if (part.chunks == 1) return batch;
  if (begin == end) return {};
  Batch chunk = dist::detail::rows_of(batch, begin - before, end - before);
  chunk.of_step = n;
  return chunk;
}

ChunkSeed::ChunkSeed(const RandomGenerator& step, int64_t chunk)
    : seed_([&] {
        RandomGenerator at = step;  // moved far from the thread's own draws
        at.set_offset(step.offset() + (uint64_t(chunk + 1) << 40));
        return at;
      }()) {}

}  // namespace mixtape::train
