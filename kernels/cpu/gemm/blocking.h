#pragma once
// Blocking of a matrix product, chosen from its shape and layout alone: which operand becomes rows
// and which lanes, how both are cut, what is packed and what is read in place. Measured in
// bench/worklog/021 and 143.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/int_math.h"
#include "kernels/cpu/gemm/microkernel.h"

namespace mixtape::kernels {
namespace [[gnu::visibility("hidden")]] cpu {
inline namespace MIXTAPE_TARGET {

// One operand as lines along k: rows of a, or columns of b.
struct Operand {
  int64_t count, line_stride, k_stride;  // number of lines; strides in elements
  int64_t sliver = 1;                    // lines of one tile, packed side by side
  int64_t chunk = 1;                     // lines of one chunk, a multiple of `sliver`
  bool in_place = false;                 // read from memory, not packed
  bool shared = false;                   // packed once for all chunks
  bool kept = false;                     // the same, for all products that have its Packed
};

// Blocking for products of one shape and layout. Rows (a) and lanes (b) are chosen here too, so c
// may be computed as its transpose.
template <class T>
struct Blocking {
  const Microkernel<T>& kernel;
  int64_t k, element_bytes;
  Operand a, b;
  int64_t c[2], bias[2];  // strides along a and along b
  bool half_c;            // c is not of T
  bool has_bias;
  bool has_epilogue;        // a factor, an activation, or sums that are kept before it
  bool swapped = false;     // a and b have changed places
  bool c_in_place = false;  // tiles write c themselves, without an epilogue pass
  bool b_k_major = false;   // b is read in place, and its lines are dense along k
  bool b_outer = false;     // loop over slivers of b outside the loop over slivers of a
  bool by_rows = false;     // a few rows of sums are in memory, and b is read row by row
  int64_t k_block = 1;      // elements of k that are packed at once

  int64_t k_groups(int64_t elements) const { return ceil_div(elements, kernel.k_group); }
  int64_t chunk_columns() const { return ceil_div(b.count, b.chunk); }
  int64_t chunk_count() const { return ceil_div(a.count, a.chunk) * chunk_columns(); }
  // Bytes of one packed sliver, and of `lines` packed lines, for `depth` elements of k.
  int64_t sliver_bytes(const Operand& x, int64_t depth) const {
    // The last vector of an odd width is stored whole.
    return (k_groups(depth) * x.sliver + (x.sliver % kernel.lanes ? kernel.lanes : 0)) *
           kernel.k_group_bytes;
  }
  int64_t packed_bytes(const Operand& x, int64_t lines, int64_t depth) const {
    return ceil_div(lines, x.sliver) * sliver_bytes(x, depth);
  }

  void choose() {
    // Blocks of k depend on k alone, since they decide the order of the sums and so their bits.
    const int64_t groups = std::max<int64_t>(k_groups(k), 1);
    k_block = round_up(ceil_div(groups, ceil_div(groups, max_k_block)), 16) * kernel.k_group;
    choose_packing();
    Blocking transposed = *this;
    transposed.swap_operands();
    if (!few_rows() && transposed.few_rows()) swap_operands();
    if (few_rows()) return choose_rows();
    if (transposed.estimated_cycles() < estimated_cycles()) swap_operands();
    choose_blocking();
  }

 private:
  // k_groups of one block: a sliver of a and one of b stay in the first-level cache.
  static constexpr int64_t max_k_block = 512;
  static constexpr int64_t page_bytes = 4096;
  static constexpr int64_t large_operand = 4 << 20;   // bytes; exceeds the second-level cache
  static constexpr int64_t enough_chunks = 8;         // to keep several threads busy
  static constexpr int64_t max_chunk = 128;           // lines
  static constexpr int64_t min_chunk_work = 1 << 19;  // k_groups times lines of both operands
  // Sums that are kept in memory stay in the first-level cache. Their rows are long, since b is
  // read as pieces of as many columns.
  static constexpr int64_t most_rows = 4, least_columns = 64, most_columns = 1024;
  static constexpr int64_t most_row_bytes = 16 << 10;

  // True for a few rows and a matrix whose rows are dense: a tile would read a few vectors of each,
  // which makes a new page of every step of k.
  bool few_rows() const {
    return kernel.row_sums && !a.kept && !b.kept && a.count <= most_rows && b.line_stride == 1 &&
           b.count >= least_columns && k > 8;
  }
  void choose_rows() {
    by_rows = b.in_place = b_outer = true;
    a.in_place = b_k_major = c_in_place = false;
    a.sliver = a.chunk = a.count;
    b.sliver = kernel.lanes;
    const int64_t most = std::min(most_columns, most_row_bytes / int64_t{sizeof(T)} / a.count);
    b.chunk = round_up(ceil_div(b.count, ceil_div(b.count, most)), b.sliver);
    a.shared = b.chunk < b.count;
  }

  void swap_operands() {
    std::swap(a, b);
    std::swap(c[0], c[1]);
    std::swap(bias[0], bias[1]);
    swapped = !swapped;
    choose_packing();
  }

  // Decides what is read in place. Lines whole pages apart would compete for a few sets of the
  // first-level cache, so they are packed.
  void choose_packing() {
    const bool readable = kernel.in_place && k % kernel.k_group == 0;
    const int64_t page = page_bytes / element_bytes;
    // Low tiles read the same lines often: packed, these take fewer instructions and cache lines.
    const bool low_tile = kernel.rows < 8;
    const bool reread_often = low_tile && b.count > 8 * kernel.lanes * kernel.vectors;
    // With few rows, nothing of b is read twice: dense lines are transposed in the microkernel.
    b_k_major = !b.kept && a.count <= kernel.rows && k % kernel.k_group == 0 && b.k_stride == 1 &&
                b.line_stride > 1;
    // So are lines of a that are eighths of a page apart, if tiles read them for many columns.
    const bool read_often = !low_tile && b.count > 4 * kernel.lanes * kernel.vectors;
    const int64_t apart = read_often ? page / 8 : page;
    const bool a_dense_along_k = a.k_stride == 1 && (a.count == 1 || a.line_stride % apart != 0);
    // Low tiles use only a part of what they read of a, and read b often. If k strides are eighths
    // of a page, neither stays in the first-level cache.
    const auto is_evicted = [&](const Operand& x) {
      return low_tile && k > 64 && x.k_stride % (page / 8) == 0;
    };
    const bool a_dense_across =
        kernel.k_group == 1 && a.line_stride == 1 && a.k_stride <= apart / 2 && !is_evicted(a);
    a.in_place =
        readable && !a.kept && !reread_often && !b_k_major && (a_dense_along_k || a_dense_across);
    const bool b_misses_cache =
        b.k_stride % (page / 4) == 0 && b.count * k * element_bytes > large_operand;
    const bool few_reads = a.count <= (is_evicted(b) ? 16 : 64) * kernel.rows &&
                           (k <= 16 || (b.k_stride % page != 0 && !b_misses_cache));
    b.in_place = b_k_major || (readable && !b.kept && kernel.k_group == 1 && b.line_stride == 1 &&
                               (a.count <= kernel.rows || few_reads));
    // A bias is added last, so not after the first of several blocks of k.
    c_in_place = !has_epilogue && c[1] == 1 && !(has_bias && (bias[1] != 1 || k > k_block));
  }

  // Rough cost of the product with these rows and lanes.
  double estimated_cycles() const {
    const auto packing = [&](const Operand& x) {
      const double cycles_per_element = x.kept               ? 0
                                        : x.in_place         ? (&x == &b && b_k_major ? 0.1 : 0)
                                        : x.line_stride == 1 ? 0.15
                                        : x.k_stride == 1    ? 0.3
                                                             : 2;
      return cycles_per_element * double(x.count * k);
    };
    // A tile of one vector does less arithmetic for what it reads.
    const int64_t width = int64_t{kernel.lanes} * kernel.vectors, rest = b.count % width;
    const double columns = double(b.count - rest) + (rest == 0              ? 0
                                                     : rest <= kernel.lanes ? 1.4 * kernel.lanes
                                                                            : double(width));
    const double arithmetic = double(std::max<int64_t>(a.count, 4)) * columns * double(k) /
                              (2 * kernel.lanes * kernel.k_group);
    const double cycles_per_result = c_in_place ? 0 : c[1] == 1 ? 0.2 : c[0] == 1 ? 0.5 : 2;
    return arithmetic + packing(a) + packing(b) + double(a.count * b.count) * cycles_per_result;
  }

  // Cuts the operand with more lines into chunks, each of which packs its own; the other one is
  // packed once for all, and cut only if there would be few chunks.
  void choose_blocking() {
    a.sliver = ceil_div(a.count, ceil_div(a.count, kernel.rows));
    b.sliver = int64_t{kernel.lanes} * kernel.vectors;
    a.chunk = round_up(a.count, a.sliver);
    b.chunk = round_up(b.count, b.sliver);
    const auto cut = [&](Operand& x, const Operand& other, int64_t parts) {
      const int64_t least = kernel.k_group * min_chunk_work / std::max<int64_t>(1, other.chunk * k);
      const int64_t most = std::max({int64_t{1}, least, std::min(x.count / parts, max_chunk)});
      // All alike, so that threads end together.
      x.chunk = round_up(ceil_div(x.count, ceil_div(x.count, most)), x.sliver);
    };
    Operand& larger = a.count > b.count ? a : b;
    Operand& smaller = a.count > b.count ? b : a;
    cut(larger, smaller, enough_chunks);
    if (chunk_count() < enough_chunks) cut(smaller, larger, enough_chunks / chunk_count());
    a.shared = a.kept || (!a.in_place && b.chunk < b.count);
    b.shared = b.kept || (!b.in_place && a.chunk < a.count);
    b_outer = a.chunk <= b.chunk;
  }
};

}  // namespace MIXTAPE_TARGET
}  // namespace cpu
}  // namespace mixtape::kernels
