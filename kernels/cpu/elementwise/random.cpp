// Random numbers: element i is a pure function of (seed, offset, i). Sixteen blocks of Philox, one
// per lane, make 64 numbers at a time.

#include <algorithm>
#include <cmath>

#include "kernels/common/draw.h"
#include "kernels/cpu/loops/parallel.h"
#include "kernels/cpu/simd/philox.h"
#include "kernels/cpu/simd/simd.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
namespace {
using philox::interleave, philox::Words;

constexpr int batch = 64;  // numbers of 16 blocks

// Generates y: make(words, first, count, numbers) fills a batch of `Number`s in the order of
// elements, `count` of which are used. y's type decides the rounding.
template <class Number, class T, class Make>
void generate(const Draw& at, int64_t n, T* y, Make make) {
  parallel_ranges(n, 256 * batch, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += batch) {
      const Words words(at.seed, at.offset + static_cast<uint64_t>(i / 4));
      const int64_t count = std::min<int64_t>(batch, end - i);
      alignas(64) Number numbers[batch];
      make(words, i, count, numbers);
      T rounded[batch];
      T* const to = count == batch ? y + i : rounded;
      for (int k = 0; k < batch; k += Vec<Number>::width) store(to + k, load(numbers + k));
      if (to == rounded) std::copy_n(rounded, count, y + i);
    }
  });
}

// Box-Muller: z0, z1 = sqrt(-2 log u) (cos, sin)(2 pi v), u in (0, 1], v in [0, 1).
template <class M>
void normal_pair(const uint32_t* u_bits, const uint32_t* v_bits, M* z0, M* z1) {
  alignas(64) M u[16], v[16];
  for (int l = 0; l < 16; ++l) {
    u[l] = 1.0f - Philox::uniform(u_bits[l]);  // exact
    v[l] = Philox::uniform(v_bits[l]);
  }
  for (int i = 0; i < 16; i += Vec<M>::width) {
    const Vec<M> radius = sqrt(log(load(u + i)) * M(-2)), turns = load(v + i);
    if constexpr (std::is_same_v<M, float>) {
      const Circle at(turns);
      store(z0 + i, radius * at.cosine);
      store(z1 + i, radius * at.sine);
    } else {
      const Vec<M> angle = turns * 6.283185307179586;
      store(z0 + i, radius * cos(angle));
      store(z1 + i, radius * sin(angle));
    }
  }
}

}  // namespace

void random_uniform(Launch&, const Draw& at, double low, double high, Out y) {
  visit_float(y.dtype, [&]<class T>() {
    generate<double>(
        at, y.size(), y.as<T>(),
        [draw = RandomReal<T>(low, high)](const Words& words, int64_t, int64_t, double* out) {
          uint32_t bits[batch];
          interleave(words.word, bits);
          for (int k = 0; k < batch; ++k) out[k] = draw(bits[k]);
        });
  });
}

void random_normal(Launch&, const Draw& at, double mean, double std, Out y) {
  visit_float(y.dtype, [&]<class T>() {
    using M = math_t<T>;
    generate<M>(at, y.size(), y.as<T>(),
                [m = M(mean), s = M(std)](const Words& words, int64_t, int64_t, M* out) {
                  alignas(64) M z[4][16];
                  normal_pair(words.word[0], words.word[1], z[0], z[1]);
                  normal_pair(words.word[2], words.word[3], z[2], z[3]);
                  interleave(z, out);
                  for (int k = 0; k < batch; ++k) out[k] = m + s * out[k];
                });
  });
}

void random_integer(Launch&, const Draw& at, int64_t low, int64_t high, Out y) {
  const RandomInteger draw(low, high);
  const uint64_t second = at.offset + RandomInteger::blocks(y.size());
  generate<int64_t>(
      at, y.size(), y.as<int64_t>(), [=](const Words& words, int64_t first, int64_t, int64_t* out) {
        uint32_t bits[batch], more[batch] = {};
        interleave(words.word, bits);
        if (draw.is_wide())
          interleave(Words(at.seed, second + static_cast<uint64_t>(first / 4)).word, more);
        for (int k = 0; k < batch; ++k) out[k] = draw(bits[k], more[k]);
      });
}

void dropout(Launch&, const Draw& at, double p, In x, Out y) {
  const uint32_t threshold = dropout_threshold(p);
  visit_float(x.dtype, y.dtype, [&]<class Tx, class Ty>() {
    using M = math_t<Tx>;
    const Tx* const x_data = x.as<Tx>();
    const M scale = static_cast<M>(1 / (1 - p));
    generate<M>(at, y.size(), y.as<Ty>(),
                [=](const Words& words, int64_t first, int64_t count, M* out) {
                  uint32_t bits[batch];
                  interleave(words.word, bits);
                  Tx rest[batch];
                  const Tx* from = x_data + first;
                  if (count < batch) {
                    std::fill_n(std::copy_n(from, count, rest), batch - count, Tx(0.0f));
                    from = rest;
                  }
                  for (int k = 0; k < batch; k += Vec<M>::width)
                    store(out + k, load(from + k) * scale);
                  for (int k = 0; k < batch; ++k)
                    out[k] = (bits[k] >> 8) >= threshold ? out[k] : M(0);
                });
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
