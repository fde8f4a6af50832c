#pragma once
// How a matrix product is computed, from its shape and layout alone: which operand becomes rows and
// which lanes, how both are cut, what is packed and what is read in place. Measured in
// bench/worklog/021 and 143.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/common/int_math.h"
#include "kernels/cpu/gemm/microkernel.h"

namespace mixtape::kernels::cpu {

// One operand: lines along k, which are rows of a or columns of b.
struct Side {
  int64_t count, line, step;  // lines; strides in elements from line to line and along k
  int64_t sliver = 1;         // lines that one tile reads, packed side by side
  int64_t chunk = 1;          // lines that one chunk reads
  bool in_place = false;      // read where they are, not packed
  bool shared = false;        // packed once for all chunks
};

// How products of one shape and layout are computed. What becomes rows (a) and what lanes (b) is
// chosen here, so c may be computed as its transpose.
template <class T>
struct GemmPlan {
  const Engine<T>& engine;
  int64_t k, element;  // steps; bytes of an element
  Side a, b;
  int64_t c[2], bias[2];  // strides along a and along b
  bool narrow;            // c is not of T
  bool biased;
  bool ends;  // sums are not all that is written, nor is a bias
  bool swapped = false, c_in_place = false;
  bool b_along = false;  // b is read in place, and its lines lie along k
  bool b_outer = false;  // a chunk goes over its slivers of b, and for each over all of a
  int64_t depth = 1;     // elements of k that are packed at once

  int64_t units(int64_t elements) const { return ceil_div(elements, engine.unit); }
  int64_t across() const { return ceil_div(b.count, b.chunk); }
  int64_t chunks() const { return ceil_div(a.count, a.chunk) * across(); }
  // Bytes from one sliver to the next, and of all lines from `from` to `to`.
  int64_t pitch(const Side& x, int64_t depth) const {
    return (units(depth) * x.sliver + (x.sliver % engine.lanes ? engine.lanes : 0)) *
           engine.unit_bytes;
  }
  int64_t room(const Side& x, int64_t lines, int64_t depth) const {
    return ceil_div(lines, x.sliver) * pitch(x, depth);
  }

  void choose() {
    // (By k alone: how a sum is cut decides its bits.)
    const int64_t all = std::max<int64_t>(units(k), 1);
    depth = round_up(ceil_div(all, ceil_div(all, 512)), 16) * engine.unit;
    place();
    GemmPlan turned = *this;
    std::swap(turned.a, turned.b);
    std::swap(turned.c[0], turned.c[1]);
    std::swap(turned.bias[0], turned.bias[1]);
    turned.swapped = true;
    turned.place();
    if (turned.cost() < cost()) {
      std::swap(a, b);
      std::swap(c[0], c[1]);
      std::swap(bias[0], bias[1]);
      swapped = true;
      place();
    }
    cut();
  }

 private:
  void place() {
    const bool as_is = engine.in_place && k % engine.unit == 0;
    const int64_t page = 4096 / element;
    // Lines whole pages apart would share a few places of the first-level cache. Of tiles so low
    // that many read the same lines, packed ones take fewer instructions and lines of the cache; so
    // do those whose steps are eighths of a page apart, of which they use a part of a line each.
    const bool low = engine.rows < 8;
    const bool often = low && b.count > 8 * engine.lanes * engine.vectors;
    // Of few rows, nothing of b is read twice: lines along k are turned on the way.
    b_along = a.count <= engine.rows && k % engine.unit == 0 && b.step == 1 && b.line > 1;
    a.in_place = as_is && !often && !b_along &&
                 ((a.step == 1 && (a.count == 1 || a.line % page != 0)) ||
                  (engine.unit == 1 && a.line == 1 && a.step <= page / 2 &&
                   !(low && k > 64 && a.step % (page / 8) == 0)));
    const bool far = b.step % (page / 4) == 0 && b.count * k * element > (4 << 20);
    b.in_place =
        b_along || (as_is && engine.unit == 1 && b.line == 1 &&
                    (a.count <= engine.rows ||
                     (a.count <= 64 * engine.rows && (k <= 16 || (b.step % page != 0 && !far)))));
    // (A bias comes last: not after the first of several blocks.)
    c_in_place = !ends && c[1] == 1 && !(biased && (bias[1] != 1 || k > depth));
  }
  // In cycles, roughly.
  double cost() const {
    const auto packing = [&](const Side& x) {
      const double each = x.in_place    ? (&x == &b && b_along ? 0.1 : 0)
                          : x.line == 1 ? 0.15
                          : x.step == 1 ? 0.3
                                        : 2;
      return each * double(x.count * k);
    };
    // A tile of one vector does less for what it reads.
    const int64_t width = int64_t{engine.lanes} * engine.vectors, rest = b.count % width;
    const double columns = double(b.count - rest) + (rest == 0              ? 0
                                                     : rest <= engine.lanes ? 1.4 * engine.lanes
                                                                            : double(width));
    return double(std::max<int64_t>(a.count, 4)) * columns * double(k) /
               (2 * engine.lanes * engine.unit) +
           packing(a) + packing(b) +
           (c_in_place ? 0
                       : double(a.count * b.count) * (c[1] == 1   ? 0.2
                                                      : c[0] == 1 ? 0.5
                                                                  : 2));
  }
  void cut() {
    a.sliver = ceil_div(a.count, ceil_div(a.count, engine.rows));
    b.sliver = int64_t{engine.lanes} * engine.vectors;
    // The operand of more lines is cut, and each chunk packs its own; the other one is packed once
    // for all, and is cut only where there would be few chunks.
    a.chunk = round_up(a.count, a.sliver);
    b.chunk = round_up(b.count, b.sliver);
    const auto share = [&](Side& x, const Side& other, int64_t parts) {
      const int64_t least = (int64_t{engine.unit} << 19) / std::max<int64_t>(1, other.chunk * k);
      x.chunk = std::min(x.count, std::max(least, std::min<int64_t>(x.count / parts, 128)));
      x.chunk = round_up(std::max<int64_t>(x.chunk, 1), x.sliver);
    };
    Side& many = a.count > b.count ? a : b;
    Side& few = a.count > b.count ? b : a;
    share(many, few, 8);
    if (chunks() < 8) share(few, many, 8 / chunks());
    a.shared = !a.in_place && b.chunk < b.count;
    b.shared = !b.in_place && a.chunk < a.count;
    b_outer = a.chunk <= b.chunk;
  }
};

}  // namespace mixtape::kernels::cpu
