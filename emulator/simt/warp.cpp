// Exchanges between the lanes of a warp, and products of its tensor cores.
#include "emulator/simt/machine.h"
#include "emulator/simt/tensor.h"

namespace mixtape::simt {

// Publishes a value and returns those of all lanes, once they are there. Double-buffered: a lane
// can be at most one exchange ahead.
const Slot* gather(const void* value, size_t bytes, SourceLocation where) {
  Warp& w = running->warp();
  const int buffer = w.buffer;
  unsigned char* const slot = w.slot[buffer][running->current() % warp_size];
  if (bytes == 4)  // as most are
    std::memcpy(slot, value, 4);
  else
    std::memcpy(slot, value, bytes);
  running->wait(State::AtWarp, where);
  w.buffer = 1 - buffer;
  return w.slot[buffer];
}
void exchange(void* value, size_t bytes, int from, SourceLocation where) {
  const Slot* const slots = gather(value, bytes, where);
  if (from < running->lanes(running->current() / warp_size)) std::memcpy(value, slots[from], bytes);
}

// Two rows at a time, as vectors, which a compiler does not see in a plain loop.
template <int depth>
void product(const float (&a)[16][depth], const float (&b)[depth][16], float (&c)[16][16]) {
  using Four [[gnu::vector_size(16)]] = float;
  for (int r = 0; r < 16; r += 2) {
    Four sums[2][4] = {};
    for (int k = 0; k < depth; ++k)
      for (int i = 0; i < 4; ++i) {
        Four x;
        std::memcpy(&x, &b[k][4 * i], sizeof x);
        sums[0][i] += a[r][k] * x;
        sums[1][i] += a[r + 1][k] * x;
      }
    std::memcpy(c[r], sums, sizeof sums);
  }
}
template void product(const float (&)[16][8], const float (&)[8][16], float (&)[16][16]);
template void product(const float (&)[16][16], const float (&)[16][16], float (&)[16][16]);

// All numbers of f16: conversions would take a large part of a product's time.
const float* halves() {
  static const std::vector<float> all = [] {
    std::vector<float> x(65536);
    for (uint32_t i = 0; i < x.size(); ++i) x[i] = float(std::bit_cast<Half>(uint16_t(i)));
    return x;
  }();
  return all.data();
}

namespace {

struct Parts {
  const uint32_t *a, *b;
  float* sum;
};

template <class T>
void multiply(const Gathered<Parts>& all) {
  constexpr int depth = 32 / int(sizeof(T)), in_word = 4 / int(sizeof(T));
  alignas(16) float a[16][depth], b[depth][16], c[16][16];
  const float* const half = halves();
  const auto number = [&](uint32_t word, int e) {
    if constexpr (sizeof(T) == 4)
      return std::bit_cast<float>(word & ~0x1fffu);
    else if constexpr (std::is_same_v<T, Half>)
      return half[uint16_t(word >> (16 * e))];
    else
      return float(std::bit_cast<T>(uint16_t(word >> (16 * e))));
  };
  for (int l = 0; l < warp_size; ++l) {
    const Parts parts = all[l];
    for (int i = 0; i < 4; ++i)
      for (int e = 0; e < in_word; ++e) {
        const int line = i % 2 * 8 + l / 4, k = i / 2 * (depth / 2) + l % 4 * in_word + e;
        a[line][k] = number(parts.a[i], e);
        b[k][line] = number(parts.b[i], e);
      }
  }
  product(a, b, c);
  for (int l = 0; l < warp_size; ++l) {
    float* const sum = all[l].sum;
    for (int e = 0; e < 8; ++e) sum[e] += c[l / 4 + e % 4 / 2 * 8][e / 4 * 8 + l % 4 * 2 + e % 2];
  }
}

}  // namespace

template <class T>
void multiply(float (&sum)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4],
              SourceLocation where) {
  const Parts mine{a, b, sum[0]};
  const Gathered<Parts> all(mine, where);
  if (running->current() % warp_size == 0) multiply<T>(all);
  running->wait(State::AtWarp, where);
}
template void multiply<Half>(float (&)[2][4], const uint32_t (&)[4], const uint32_t (&)[4],
                             SourceLocation);
template void multiply<BFloat16>(float (&)[2][4], const uint32_t (&)[4], const uint32_t (&)[4],
                                 SourceLocation);
template void multiply<float>(float (&)[2][4], const uint32_t (&)[4], const uint32_t (&)[4],
                              SourceLocation);

}  // namespace mixtape::simt
