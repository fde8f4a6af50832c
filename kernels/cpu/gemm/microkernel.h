#pragma once
// Engine: what a matrix product needs of one instruction set, packing and the sums of one tile.
// Each is compiled in a file of its own with that set's flags; gemm.cpp and conv.cpp choose at run
// time and do everything else. Where there is none, products are Eigen's and convolutions use a
// portable one.

#include <cstdint>

#include "core/no_copy.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu {

// In ascending order; a processor that has one has those before it.
enum class Isa : int { Portable, Avx2, Avx512, Avx512Bf16 };

// What products of this thread use: the best that the processor has, but no better than
// MIXTAPE_ISA=portable|avx2|avx512|avx512_bf16 or the innermost IsaLimit says.
Isa current_isa();

class IsaLimit : NoCopy {
 public:
  explicit IsaLimit(Isa most);
  ~IsaLimit();

 private:
  int outer_;
};

// Where some steps of k begin, in bytes from a and from b.
struct Block {
  int64_t a, b;
};

// out[i][j] = sum over k of a[i][k] * b[k][j], plus add[i][j] if that is given; `out` may be `add`.
// k counts units: elements, or pairs of them; it runs over each of the blocks, or, where there is
// no list of them, once. Strides of a and b in bytes, others in elements.
template <class T>
struct Tile {
  int64_t depth;
  const void *a, *b;
  int64_t a_row, a_step, b_step;
  int64_t b_line = 0;  // from line to line of b, if it is as in memory, along k; then a is packed
  void* out;           // of T, or of the operands' dtype if `narrow`
  int64_t out_row;
  bool narrow;
  const T* add;
  int64_t add_row;
  bool far = false;  // what is written is in no cache of this processor's own
  const Block* block = nullptr;
  int64_t blocks = 1;
};

// Strands: `count` lines of numbers along k, to be laid side by side: rows of a, or columns of b.
struct Strands {
  const void* data;
  int64_t line, step;  // strides in elements, from line to line and along k
  int64_t count;
  int64_t readable;  // lines that are in memory from here on
};

template <class T>  // what is summed in: float or double
struct Engine {
  int rows, lanes, vectors;  // of the largest tile: rows x (vectors * lanes)
  int unit;                  // elements of k that one unit holds
  int unit_bytes;
  bool in_place;  // units are elements as they lie in memory, so that they need not be packed
  void (*tile)(int rows, int vectors, const Tile<T>&);
  // to[u * width + i] = unit u of line i; zero beyond `depth` elements, anything beyond
  // the lines. Writes up to `lanes` units more than that if width is no multiple of lanes.
  void (*pack)(const Strands&, int64_t depth, int64_t width, void* to);
};

// Of products of operands of this dtype; null if there is none but the portable one.
template <class T>
const Engine<T>* find_engine(Isa, DType);
// That, or the portable one.
template <class T>
const Engine<T>& any_engine(Isa, DType);

// One for each dtype, in the order f64, f32, f16, bf16. (Of the sets that this build has.)
struct Engines {
  Engine<double> f64;
  Engine<float> f32, f16, bf16;
};
extern const Engines portable_engines, avx2_engines, avx512_engines;
extern const Engine<float> avx512_bf16_engine;

void eigen_gemm(Launch&, In a, In b, const Epilogue& epilogue, Out c);  // but for its row sums

}  // namespace mixtape::kernels::cpu
