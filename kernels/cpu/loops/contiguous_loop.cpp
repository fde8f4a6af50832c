// Two ways to run a loop: directly over dense views, or piece by piece with strided operands
// gathered into buffers and scattered back.

#include "kernels/cpu/loops/contiguous_loop.h"

#include <algorithm>
#include <cstring>

#include "core/int_math.h"
#include "kernels/cpu/loops/parallel.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

constexpr int64_t most_repeated = 4096;  // elements; longer repetitions are gathered fast anyway

struct Operand {
  char* data;            // null if the operand is absent
  int64_t size;          // bytes of an element
  const Layout* layout;  // collapsed; null if the operand is dense
  int64_t period = 0;    // not 0: dense, repeats after `period` elements, stored with a piece more

  char* at(int64_t i) const {  // element i of a dense operand
    return data ? data + (period ? i % period : i) * size : nullptr;
  }
};
struct Operands {
  Operand operand[max_operands];
  int count, first_output;
};

// Loads the first `count` of 16 elements, and zeros the others. Stores whole registers, since a
// vector load after several smaller stores would stall.
void load_rest(void* to, const void* from, int64_t count, size_t size) {
#if defined(__AVX512F__)
  constexpr size_t widest = 64;
#elif defined(__AVX__)
  constexpr size_t widest = 32;
#else
  constexpr size_t widest = 16;
#endif
  with_word(size, [&]<class Word>(Word) {
    constexpr size_t bytes = std::min(widest, 16 * sizeof(Word));
    constexpr int lanes = bytes / sizeof(Word);
    using Vector [[gnu::vector_size(bytes)]] = Word;
    const auto* const x = static_cast<const Word*>(from);
    for (int first = 0; first < 16; first += lanes) {
      Vector v = {};
      if (count == 1)  // (A scalar load does not stall either if x was just written.)
        v = first == 0 ? Vector{x[0]} : v;
      else
        for (int i = 0; i < lanes; ++i) v[i] = first + i < count ? x[first + i] : Word(0);
      std::memcpy(static_cast<Word*>(to) + first, &v, sizeof v);
    }
  });
}
void store_rest(void* to, const void* from, int64_t count, size_t size) {
  with_word(size, [&]<class Word>(Word) {
    copy_short<16 * sizeof(Word)>(static_cast<const Word*>(from), count, static_cast<Word*>(to));
  });
}

// Runs the loop over elements [begin, end) of dense views.
void run_dense(std::initializer_list<const View*> views, int outputs, int64_t begin, int64_t end,
               ContiguousLoop loop, const void* context) {
  const View* const* const view = views.begin();
  const int count = static_cast<int>(views.size()), first_output = count - outputs;
  const auto at = [&](int k, int64_t i) {
    return view[k]->as<char>() + i * static_cast<int64_t>(size_of(view[k]->dtype));
  };
  void* p[max_operands];
  const int64_t whole = (end - begin) & ~int64_t{15}, rest = end - begin - whole;
  if (whole > 0) {
    for (int k = 0; k < count; ++k) p[k] = *view[k] ? at(k, begin) : nullptr;
    loop(p, whole, context);
  }
  if (rest == 0) return;
  alignas(64) char buffer[max_operands][16 * sizeof(int64_t)];
  for (int k = 0; k < count; ++k) {
    p[k] = *view[k] ? buffer[k] : nullptr;
    if (p[k] && k < first_output)
      load_rest(p[k], at(k, begin + whole), rest, size_of(view[k]->dtype));
  }
  loop(p, 16, context);
  for (int k = first_output; k < count; ++k)
    if (p[k]) store_rest(at(k, begin + whole), p[k], rest, size_of(view[k]->dtype));
}

// The same for n elements, in parallel. (Here, so that a short loop does not prepare for it.)
[[gnu::noinline]] void run_many(std::initializer_list<const View*> views, int outputs, int64_t n,
                                ContiguousLoop loop, const void* context) {
  parallel_ranges(n, grain, [&](int64_t begin, int64_t end) {
    run_dense(views, outputs, begin, end, loop, context);
  });
}

// Runs the loop over elements [begin, end), in row-major order of the collapsed layouts.
void run_strided(const Operands& all, int64_t begin, int64_t end, ContiguousLoop loop,
                 const void* context) {
  alignas(64) char buffer[max_operands][piece * sizeof(int64_t)];
  Walk walks[max_operands];
  for (int k = 0; k < all.count; ++k)
    if (const Operand& o = all.operand[k]; o.layout)
      walks[k] = Walk(o.data, static_cast<size_t>(o.size), *o.layout, begin);
  for (int64_t at = begin; at < end; at += piece) {
    const int64_t n = std::min(end - at, piece), padded = round_up(n, 16);
    void* p[max_operands] = {};
    for (int k = 0; k < all.count; ++k) {
      const Operand& o = all.operand[k];
      if (!o.data) continue;
      char* const direct = o.at(at);
      p[k] = !o.layout && (padded == n || o.period) ? direct : buffer[k];
      if (p[k] == direct || k >= all.first_output) continue;
      if (o.layout)
        walks[k].gather(buffer[k], n);
      else
        std::memcpy(buffer[k], direct, static_cast<size_t>(n * o.size));
      std::memset(buffer[k] + n * o.size, 0, static_cast<size_t>((padded - n) * o.size));
    }
    loop(p, padded, context);
    for (int k = all.first_output; k < all.count; ++k) {
      const Operand& y = all.operand[k];
      if (!y.data) continue;
      if (y.layout)
        walks[k].scatter(buffer[k], n);
      else if (p[k] == buffer[k])
        std::memcpy(y.data + at * y.size, buffer[k], static_cast<size_t>(n * y.size));
    }
  }
}

// Lays out an operand that repeats after a few elements, such as a bias, once, plus one piece: then
// every piece of it is dense, wherever it begins.
Operand repeated(Launch& launch, const Operand& o) {
  Layout once = *o.layout;
  const int64_t all = once.shape.size();
  once.shape.dim[0] = 1;
  const int64_t period = once.shape.size();
  const int64_t count = std::min(round_up(all, 16), period + piece);
  char* const table = launch.scratch<char>(count * o.size);
  Walk(o.data, static_cast<size_t>(o.size), once, 0).gather(table, period);
  for (int64_t done = period; done < count; done *= 2)
    std::memcpy(table + done * o.size, table,
                static_cast<size_t>(std::min(done, count - done) * o.size));
  return {table, o.size, nullptr, period};
}

// for_each_contiguous() where not all views are dense.
[[gnu::noinline]] void for_each_strided(Launch& launch, std::initializer_list<const View*> views,
                                        ContiguousLoop loop, const void* context, int outputs,
                                        const Layout& y) {
  const View* const* const view = views.begin();
  const int count = static_cast<int>(views.size());
  const int64_t n = y.shape.size();
  Operands all;
  all.count = count;
  all.first_output = count - outputs;
  for (int k = 0; k < count; ++k)
    all.operand[k] = {view[k]->as<char>(), static_cast<int64_t>(size_of(view[k]->dtype)), nullptr};
  const MemoryOrder order(y);  // in this order most views are dense
  Layout layouts[max_operands];
  for (int k = 0; k < all.count; ++k) {
    Operand& o = all.operand[k];
    if (!o.data) continue;
    Layout& l = layouts[k] = order.of(view[k]->layout);
    Layout* const one[] = {&l};
    collapse(one);
    if (l.rank() == 1 && (l.strides[0] == 1 || n <= 1)) continue;
    o.layout = &l;
    if (k < all.first_output && l.strides[0] == 0 && n / l.shape[0] <= most_repeated) {
      o = repeated(launch, o);
      continue;
    }
    // Strided reads across the rows of memory cost more than a copy.
    const View x{o.data, view[k]->dtype, l};
    View copy{nullptr, x.dtype, Layout(l.shape)};
    if (k >= all.first_output || !is_transposed(x, copy)) continue;
    copy.data = launch.scratch<char>(n * o.size);
    cpu::copy(x, copy);
    o = {static_cast<char*>(copy.data), o.size, nullptr};
  }
  parallel_ranges(n, grain,
                  [&](int64_t begin, int64_t end) { run_strided(all, begin, end, loop, context); });
}

}  // namespace

void for_each_contiguous(Launch& launch, std::initializer_list<const View*> views,
                         ContiguousLoop loop, const void* context, int outputs) {
  const View* const* y = views.end() - outputs;  // the first that is there
  while (y != views.end() && !**y) ++y;
  if (y == views.end()) return;  // nothing to write
  for (const View* v : views)
    if (*v && !v->layout.is_contiguous())
      return for_each_strided(launch, views, loop, context, outputs, (*y)->layout);
  const int64_t n = (*y)->size();
  if (n > grain) return run_many(views, outputs, n, loop, context);
  run_dense(views, outputs, 0, n, loop, context);
}

Walk::Walk(void* data, size_t element_size, const Layout& layout, int64_t position)
    : data_(static_cast<char*>(data)), size_(element_size), layout_(&layout) {
  const int64_t step = static_cast<int64_t>(element_size);
  for (int d = layout.rank() - 1; d >= 0; --d) {
    index_[d] = position % layout.shape[d];
    position /= layout.shape[d];
    data_ += index_[d] * layout.strides[d] * step;
  }
}

void Walk::carry(int d) {
  const Shape& shape = layout_->shape;
  const Shape& strides = layout_->strides;
  for (; index_[d] == shape.dim[d] && d > 0; --d) {
    data_ += (strides.dim[d - 1] - shape.dim[d] * strides.dim[d]) * static_cast<int64_t>(size_);
    index_[d] = 0;
    ++index_[d - 1];
  }
}

Walk::Run Walk::next(int64_t most) {
  const int d = layout_->rank() - 1;
  const int64_t stride = layout_->strides.dim[d];
  const Run run{data_, std::min(most, layout_->shape.dim[d] - index_[d]), stride};
  index_[d] += run.count;
  data_ += run.count * stride * static_cast<int64_t>(size_);
  carry(d);
  return run;
}

template <class Word, class F>
void Walk::for_runs(int64_t count, F f) {
  const int d = layout_->rank() - 1;
  const int64_t length = layout_->shape.dim[d], stride = layout_->strides.dim[d];
  while (count > 0) {
    if (d > 0 && index_[d] == 0 && length <= count) {  // whole rows, of which there may be many
      const int64_t rows = std::min(count / length, layout_->shape.dim[d - 1] - index_[d - 1]);
      const int64_t step = layout_->strides.dim[d - 1];
      Word* const first = reinterpret_cast<Word*>(data_);
      for (int64_t i = 0; i < rows; ++i) f(first + i * step, length, stride);
      index_[d - 1] += rows;
      data_ += rows * step * static_cast<int64_t>(size_);
      carry(d - 1);
      count -= rows * length;
    } else {
      const Run run = next(count);
      f(reinterpret_cast<Word*>(run.data), run.count, stride);
      count -= run.count;
    }
  }
}

void Walk::gather(void* to, int64_t count) {
  with_word(size_, [&]<class Word>(Word) {
    Word* y = static_cast<Word*>(to);
    for_runs<Word>(count, [&](const Word* x, int64_t n, int64_t stride) {
      if (stride == 1)
        copy_run(x, n, y);
      else if (stride == 0)
        std::fill_n(y, n, *x);
      else
        for (int64_t i = 0; i < n; ++i) y[i] = x[i * stride];
      y += n;
    });
  });
}

void Walk::scatter(const void* from, int64_t count) {
  with_word(size_, [&]<class Word>(Word) {
    const Word* x = static_cast<const Word*>(from);
    for_runs<Word>(count, [&](Word* y, int64_t n, int64_t stride) {
      if (stride == 1)
        copy_run(x, n, y);
      else
        for (int64_t i = 0; i < n; ++i) y[i * stride] = x[i];
      x += n;
    });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
