#pragma once
// Bucket: tensors of one dtype and device that travel together in a flat buffer, and their sum over
// the chunks of a step.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "dist/exchange.h"
#include "dist/part.h"

namespace mixtape::dist {

namespace detail {
void write(const Tensor& from, const Tensor& to);  // copies in place, in to's dtype
}  // namespace detail

// True if a bucket with so many tensors and bytes of gradients should take no more. The first
// bucket has few, so that something travels soon. (The number of tensors is limited, since their
// words ride along: see Exchange::most_words.)
bool are_enough(size_t tensors, int64_t bytes, bool first, double bucket_mb);

class Bucket : public std::enable_shared_from_this<Bucket>, NoCopy {
 public:
  struct Options {
    Part part;
    DType result;   // of the sums
    DType travels;  // of the numbers sent; sums are f32, or f64 if this is f64
    Device device;
    double by = 1;  // multiplies the sums
    // Cuts the bucket into a piece for each rank: the tensor and the element at which each piece
    // begins, and the end. A rank then gets the sums of its own piece only. Empty: every rank gets
    // all.
    std::vector<std::pair<size_t, int64_t>> cut = {};
  };
  // `exchange` is null in a world of one.
  Bucket(Exchange* exchange, const Options& options);

  // Adds a tensor of this shape, before allocate(), and returns its index.
  size_t add(const Shape& shape, const std::string& name);
  void allocate();
  int64_t bytes() const { return size_ * int64_t(size_of(options_.travels)); }
  size_t tensors() const { return items_.size(); }

  // Adds the next chunk's value of a tensor to those of earlier chunks, in the order of sum_tree().
  // An empty value counts as zeros.
  void put(size_t tensor, const Tensor& value);
  bool is_full() const { return missing_ == 0; }  // all tensors have their last chunk's value
  // Begins to add up the ranks' parts. `words` are this rank's numbers; other ranks may have fewer.
  // A loss's flags (f32 [1]) are all set if one of them is, and get the word at their place at the
  // end.
  using Flags = std::vector<std::vector<Tensor>>;
  void send(int64_t step, int64_t number, std::vector<double> words, size_t first_flag = 0,
            Flags flags = {});
  // Waits for the sums. Returns those of the words over ranks, in the order of sum_tree().
  std::vector<double> receive();
  // A view of the sum of a tensor; if the bucket is cut, 1-dimensional and only of this rank's
  // piece.
  Tensor sum(size_t tensor) const;

 private:
  struct Item {
    internal::Layout layout;  // in the buffers
    std::string name;
    int64_t chunk = 0;  // the number of values so far
  };
  Tensor in(const Tensor& buffer, const Item& item) const {
    return buffer.with_layout(item.layout);
  }
  void exchange(const Place& place, std::vector<double> words);

  Exchange* const exchange_;
  const Options options_;
  std::vector<Item> items_;
  int64_t size_ = 0;
  size_t missing_ = 0;
  Cut cut_;                     // of part_
  Tensor part_, result_;        // this rank's part; the sum over ranks, the same if dtypes agree
  std::vector<Tensor> levels_;  // sums of 1, 2, 4 ... chunks; see sum_tree()
  std::shared_ptr<Exchange::Job> job_;
  std::vector<double> totals_;
};

}  // namespace mixtape::dist
