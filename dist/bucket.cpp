#include "dist/bucket.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/call.h"
#include "autograd/ops.h"
#include "core/int_math.h"
#include "kernels/kernels.h"

namespace mixtape::dist {
using namespace internal;
using detail::write;

void detail::write(const Tensor& from, const Tensor& to) {
  const bool is_in_place = from.raw() == to.raw() && from.dtype() == to.dtype();
  if (!is_in_place) mixtape::detail::write(from, to);
}

bool are_enough(size_t tensors, int64_t bytes, bool first, double bucket_mb) {
  constexpr size_t most = 1500;  // their words leave room for the program's
  static_assert(most < Exchange::most_words);
  const double mb = first ? std::min(1.0, bucket_mb) : bucket_mb;
  return double(bytes) >= mb * 1048576 || tensors == most;
}

Bucket::Bucket(Exchange* exchange, const Options& options)
    : exchange_(exchange), options_(options) {}

size_t Bucket::add(const Shape& shape, const std::string& name) {
  const int64_t align = 64 / int64_t(size_of(options_.travels));
  items_.push_back({Layout(shape).at_offset(size_), name});
  size_ += round_up(shape.size(), align);
  return items_.size() - 1;
}

void Bucket::allocate() {
  const int64_t align = exchange_ ? exchange_->alignment() : 1;
  size_ = round_up(std::max<int64_t>(1, size_), align);
  const auto buffer = [&](DType dtype) { return zeros({size_}, dtype, options_.device); };
  part_ = buffer(options_.travels);
  for (const auto& [tensor, element] : options_.cut)
    cut_.push_back(tensor < items_.size() ? items_[tensor].layout.offset + element : size_);
  if (!cut_.empty()) {
    cut_[0] = 0;
    const size_t rank = size_t(exchange_->rank());
    result_ = zeros({cut_[rank + 1] - cut_[rank]}, options_.result, options_.device);
  } else {
    result_ = options_.result == options_.travels ? part_ : buffer(options_.result);
  }
  const DType wide = options_.travels == f64 ? f64 : f32;
  for (int64_t sum = 1; sum < options_.part.own_chunks(); sum *= 2) levels_.push_back(buffer(wide));
  missing_ = items_.size();
}

void Bucket::put(size_t tensor, const Tensor& value) {
  Item& item = items_[tensor];
  const int64_t chunk = item.chunk++;
  Tensor sum = value ? value : zeros(in(part_, item).shape(), options_.travels, options_.device);
  const bool is_last = item.chunk == options_.part.own_chunks();
  // Joins complete sums up to the first empty level; the last chunk joins all levels.
  size_t level = 0;
  for (; is_last ? chunk >> level : chunk >> level & 1; ++level) {
    if (!(chunk >> level & 1)) continue;
    const Tensor before = in(levels_[level], item);
    mixtape::detail::accumulate(sum, before);
    sum = before;
  }
  write(sum, in(is_last ? part_ : levels_[level], item));
  missing_ -= is_last;
}

void Bucket::send(int64_t step, int64_t number, std::vector<double> words, size_t first_flag,
                  Flags flags) {
  Place place{Place::Kind::Bucket, step, number};
  for (const Item& item : items_)
    if (place.contents.size() < 200)
      place.contents += fmt::format("{}{}", place.contents.empty() ? "" : ", ", item.name);
  for (Item& item : items_) item.chunk = 0;
  missing_ = items_.size();
  // The work keeps the bucket alive, since an exception may end the step before it is done.
  auto work = [=, self = shared_from_this(), words = std::move(words),
               flags = std::move(flags)]() mutable {
    for (size_t i = 0; i < flags.size(); ++i)
      for (const Tensor& flag : flags[i])
        words[first_flag + i] = std::max(words[first_flag + i], flag.item());
    self->exchange(place, std::move(words));
  };
  if (exchange_)
    job_ = exchange_->submit(std::move(work));
  else
    work();
}

void Bucket::exchange(const Place& place, std::vector<double> words) {
  if (!exchange_) {
    kernels::sum_parts(options_.device, part_.with_layout(Layout({1, size_})), options_.by,
                       result_);
    result_.storage()->bump_version();
    totals_ = std::move(words);
    return;
  }
  const Device there = exchange_->exchanges(options_.device);
  const Tensor part = part_.copied_to(there);
  // A dtype for travelling applies to both rounds.
  const DType dtype = is_half(options_.travels) ? options_.travels : options_.result;
  const Tensor sums = dtype == options_.result && options_.device == there ? result_
                      : dtype == part.dtype() && cut_.empty()
                          ? part
                          : Tensor(result_.shape(), dtype, there);
  const auto all = cut_.empty() ? exchange_->sum(place, part, options_.by, sums, words)
                                : exchange_->sum_piece(place, part, cut_, options_.by, sums, words);
  write(sums.copied_to(options_.device), result_);
  totals_ = Exchange::total(all);
}

std::vector<double> Bucket::receive() {
  if (job_) job_->wait();
  job_ = {};
  return std::move(totals_);
}

Tensor Bucket::sum(size_t tensor) const {
  const Layout& layout = items_[tensor].layout;
  if (cut_.empty()) return in(result_, items_[tensor]);
  const int64_t first = cut_[size_t(exchange_->rank())], last = first + result_.numel(),
                begin = std::clamp(layout.offset, first, last),
                end = std::clamp(layout.offset + layout.shape.size(), first, last);
  return result_.with_layout(Layout({end - begin}).at_offset(begin - first));
}

}  // namespace mixtape::dist
