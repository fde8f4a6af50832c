#pragma once
// DataParallel: all ranks of a World train one model, each on its part of a step's batch.

#include <chrono>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "core/random.h"
#include "dist/world.h"
#include "nn/module.h"

namespace mixtape::amp {
class GradScaler;
}

namespace mixtape::dist {

namespace detail {
Tensor rows(const Tensor& x, int64_t start, int64_t stop);  // a view of x [n, ...]; x may be empty
template <class Batch>
Batch rows_of(Batch batch, int64_t start, int64_t stop) {
  batch.x = rows(batch.x, start, stop);
  batch.y = rows(batch.y, start, stop);
  for (Tensor& t : batch.more) t = rows(t, start, stop);
  return batch;
}
}  // namespace detail

enum class Scale { Mean, Sum };  // of the chunks' gradients

struct DataParallelOptions {
  // Chunks of a step, over all ranks; 0: one for each rank. Results depend only on this number: a
  // world of one with .chunks = 8 trains as 2, 4 or 8 ranks do.
  int64_t chunks = 0;
  double bucket_mb = 4;  // gradients that travel together, in MiB
  // f16 or bf16: gradients are rounded to it for travelling, and added in f32.
  std::optional<DType> wire = {};
  Scale scale = Scale::Mean;  // Sum is for losses that the program divides, such as by all tokens
};

// A chunk of a batch: const auto& [x, y, weight] = chunk. The mean of loss * weight over chunks is
// the mean over the step's examples.
template <class Batch>
struct Chunk {
  Batch batch;
  double weight;

  template <size_t i>
  const auto& get() const {
    if constexpr (i == 2)
      return weight;
    else if constexpr (i == 0)
      return batch.x;
    else
      return batch.y;
  }
};

// A guard on its thread. All ranks begin with rank 0's parameters, buffers and random stream. Under
// the guard, backward() of a loss that reaches a parameter adds up the gradients of all ranks, in
// buckets that travel while it goes on, and returns when grad() is their mean. Running statistics
// become the mean over all chunks, and histories of 8-bit recipes cover all of them. In a world of
// one with one chunk it does nothing. If a parameter joins the module later, backward() throws
// Error until a new DataParallel is made.
//   for (const auto& batch : loader) {
//     for (const auto& [x, y, weight] : parallel.chunks(batch))
//       (cross_entropy(net(x), y) * weight).backward();
//     opt.step();
//     opt.zero_grad();
//   }
class DataParallel : NoCopy {
 public:
  // Joins the ranks of World::current(), if there is one. World and module must outlive it. Throws
  // Error if parameters differ from rank 0's, if no parameter trains, and for chunks that cannot be
  // spread over ranks.
  explicit DataParallel(nn::ModuleBase& module, const DataParallelOptions& options = {});
  ~DataParallel();

  const Part& part() const { return part_; }  // for a data loader

  // This rank's chunks of a batch, its part of a step as a loader makes it. The loop's body calls
  // backward() once; its random numbers depend on the step and the chunk. If the step has fewer
  // examples than chunks, there are no chunks, and the step is left out. If a rank has several
  // chunks, throws Error if gradients of an earlier step are left.
  template <class Batch>
  class Chunks;
  template <class Batch>
  Chunks<Batch> chunks(const Batch& batch) {
    return Chunks<Batch>(*this, batch);
  }
  // Call it in place of a chunk's backward(): the chunk's gradients count as zeros. A scaler treats
  // it as a loss of 0, and so takes the step that other ranks take.
  void skip_chunk(amp::GradScaler* scaler = nullptr);
  // Numbers of a chunk that travel with its gradients, such as its loss times its examples. Call it
  // before backward(); sums() has their sums over all chunks of the last step.
  void send_along(const std::vector<double>& numbers);
  const std::vector<double>& sums() const;

  uint64_t bytes_sent() const;  // so far, by this rank
  struct Wait {
    std::chrono::steady_clock::time_point begin = {}, end = {};
  };
  Wait waited() const;  // for sums that had not arrived when the last step's backward() was done

 private:
  friend class Hold;
  struct Impl;
  void begin_chunks(int64_t examples, int64_t of_step);
  double begin_chunk(int64_t chunk);  // returns its weight
  void end_chunk();
  void end_chunks() noexcept;

  const Part part_;
  const DataParallelOptions options_;
  std::unique_ptr<Impl> impl_;  // null if there is nothing to do
  int64_t examples_ = 0;        // of the step
  int64_t count_ = 0;           // the number of this rank's chunks in the step
  std::optional<Seed> seed_;    // of the chunk
  uint64_t step_seed_ = 0;
  std::vector<double> sums_;  // without impl_
};

// A guard: backward() adds to gradients, and nothing travels. The next backward() after it sends
// the sums.
class Hold : NoCopy {
 public:
  [[nodiscard]] explicit Hold(DataParallel& parallel);
  ~Hold();

 private:
  DataParallel& parallel_;
};

template <class Batch>
class DataParallel::Chunks : NoCopy {
 public:
  Chunks(DataParallel& parallel, const Batch& batch) : parallel_(parallel), batch_(batch) {
    parallel.begin_chunks(batch.x ? batch.x.size(0) : 0, batch.of_step);
  }
  ~Chunks() { parallel_.end_chunks(); }

  class Iterator {
   public:
    using value_type = Chunk<Batch>;
    using difference_type = std::ptrdiff_t;
    explicit Iterator(Chunks& of) : of_(of) { make(); }
    const Chunk<Batch>& operator*() const { return chunk_; }
    Iterator& operator++() {
      chunk_ = {};
      of_.parallel_.end_chunk();
      ++number_;
      make();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return number_ == of_.parallel_.count_; }

   private:
    void make() {
      DataParallel& p = of_.parallel_;
      if (number_ == p.count_) return;
      const int64_t i = p.part_.first_chunk() + number_, before = p.part_.begin(p.examples_);
      const double weight = p.begin_chunk(i);
      chunk_ = {detail::rows_of(of_.batch_, p.part_.begin(i, p.examples_) - before,
                                p.part_.begin(i + 1, p.examples_) - before),
                weight};
    }
    Chunks& of_;
    int64_t number_ = 0;  // of this rank's
    Chunk<Batch> chunk_;
  };
  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  DataParallel& parallel_;
  const Batch batch_;
};

}  // namespace mixtape::dist

template <class Batch>
struct std::tuple_size<mixtape::dist::Chunk<Batch>> : std::integral_constant<size_t, 3> {};
template <size_t i, class Batch>
struct std::tuple_element<i, mixtape::dist::Chunk<Batch>> {
  using type = std::conditional_t<i == 2, const double, const mixtape::Tensor>;
};
