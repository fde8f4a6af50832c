#pragma once
// Bucket: tensors of one dtype and device that travel together, in one flat buffer, and their sum
// over the chunks of a step.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "dist/exchange.h"
#include "dist/part.h"

namespace mixtape::dist {

namespace detail {
void write(const Tensor& from, const Tensor& to);  // in place, in to's dtype
}  // namespace detail

// True of the tensors that shall travel together, with these bytes of gradients, where no more may
// join them. The first ones are few, so that something travels soon, and their words ride along:
// see Exchange::most_words.
bool are_enough(size_t tensors, int64_t bytes, bool first, double bucket_mb);

class Bucket : public std::enable_shared_from_this<Bucket>, NoCopy {
 public:
  struct Options {
    Part part;
    DType result;   // of the sums
    DType travels;  // of what is sent; sums are f32, or f64 if it is f64
    Device device;
    double by = 1;  // multiplies the sums
    // Cuts it into a piece for each rank: the tensor and the element in it where each begins, and
    // the end. Sums are then of this rank's piece alone. Empty: all ranks have all of them.
    std::vector<std::pair<size_t, int64_t>> cut = {};
  };
  // `exchange` is null in a world of one.
  Bucket(Exchange* exchange, const Options& options);

  // Makes room for a tensor of this shape and returns its index. Before allocate().
  size_t add(const Shape& shape, const std::string& name);
  void allocate();
  int64_t bytes() const { return size_ * int64_t(size_of(options_.travels)); }
  size_t tensors() const { return items_.size(); }

  // The next chunk's value of a tensor; nothing counts as zeros. It is added to those of the chunks
  // before, in the order of sum_tree().
  void put(size_t tensor, const Tensor& value);
  bool is_full() const { return missing_ == 0; }  // all tensors have their last chunk's value
  // Begins to add up the ranks' parts. Words are this rank's; others may have fewer. Each of the
  // flags (f32 [1]) is set if one of a loss is, and takes the word at its place once all is there.
  using Flags = std::vector<std::vector<Tensor>>;
  void send(int64_t step, int64_t number, std::vector<double> words, size_t first_flag = 0,
            Flags flags = {});
  // Waits for the sums. Returns those of the words over ranks, in the order of sum_tree().
  std::vector<double> receive();
  // A view of the buffer; 1-dimensional, of what this rank's piece has of the tensor, if it is cut.
  Tensor sum(size_t tensor) const;

 private:
  struct Item {
    internal::Layout layout;  // in the buffers
    std::string name;
    int64_t chunk = 0;  // values that came
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
