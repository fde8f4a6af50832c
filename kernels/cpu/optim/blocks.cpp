// Conversions of blocks: states to and from codes, parameters rounded by chance or compensated.

#include "kernels/cpu/optim/blocks.h"

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/common/block_codes.h"
#include "kernels/common/rounding.h"
#include "kernels/common/visit_narrow.h"
#include "kernels/cpu/loops/rows.h"
#include "kernels/cpu/simd/philox.h"
#include "kernels/kernels.h"

namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET {
using namespace internal;
namespace {

template <class Code>
const std::array<float, 256>& values() {
  static const std::array<float, 256> all = [] {
    std::array<float, 256> v;
    for (int i = 0; i < 256; ++i) v[i] = Code::decode(static_cast<uint8_t>(i));
    return v;
  }();
  return all;
}

template <class Code>
void decode(const uint8_t* codes, float scale, int64_t n, float* x) {
  const std::array<float, 256>& value = values<Code>();
  for (int64_t i = 0; i < n; ++i) x[i] = value[codes[i]] * scale;
}

template <class Code, bool nonnegative>
void encode(const float* x, int64_t n, uint8_t* codes, float* scale) {
  uint32_t most = 0;
  for (int64_t i = 0; i < n; ++i) most = std::max(most, magnitude(x[i]));
  const BlockCode<Code, nonnegative> code(most);
  *scale = code.scale;
  if constexpr (requires { Code::nearest(Vec<float>()); }) {
    alignas(64) float numbers[code_block];
    for_each_vec<float>(n, [&](int64_t i, int64_t count) {
      store(numbers + i, Code::nearest(read<float>(x + i, count) * Vec<float>(code.inverse)));
    });
    for (int64_t i = 0; i < n; ++i)
      codes[i] = code.lifted(static_cast<uint8_t>(static_cast<int>(numbers[i])), x[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) codes[i] = code.encode(x[i]);
  }
}

// A block's random bits, a word for each element.
struct RandomBits {
  alignas(64) uint32_t word[code_block];

  RandomBits(const LowMemory& low, int64_t begin, int64_t n, double steps, bool for_states) {
    const Draw draw =
        LowMemory::draw(low.seed, low.index, static_cast<float>(steps + 1), for_states);
    for (int64_t i = 0; i < n; i += 64)
      philox::interleave(
          philox::Words(draw.seed, static_cast<uint64_t>((low.first + begin + i) / 4)).word,
          word + i);
  }
};

// Compensated<S> of a block: p + rest is x as near as two numbers hold it, and rounds to p.
template <class S>
void store_compensated(const float* x, int64_t n, S* p, S* rest) {
  S rounded[code_block];
  for_each_vec<float>(n, [&](int64_t i, int64_t count) {
    const Vec<float> v = read<float>(x + i, count);
    write(p + i, v, count);
    const Vec<float> lost = v - read<float>(p + i, count), zero(0.0f);
    write(rest + i, select(lost - lost == zero, lost, zero), count);
    write(rounded + i, read<float>(p + i, count) + read<float>(rest + i, count), count);
  });
  for (int64_t i = 0; i < n; ++i)
    rest[i].bits = Compensated<S>::nearer(rest[i].bits, rounded[i].bits != p[i].bits);
}

// Elements [begin, begin + n) of x as T: themselves, or a copy in the buffer; null if x is absent.
template <class T>
T* as_type(const View& x, int64_t begin, int64_t n, T* buffer) {
  if (!x) return nullptr;
  if (x.dtype == dtype_of<T>()) return x.as<T>() + begin;
  visit_float(x.dtype, [&]<class S>() { convert_run(x.as<S>() + begin, n, buffer); });
  return buffer;
}

void decode_state(const Update& u, size_t k, int64_t begin, int64_t n, float* x) {
  visit_code(u.low->code, u.low->nonnegative >> k & 1, [&]<class Code, bool>() {
    decode<Code>(u.state[k].as<uint8_t>() + begin, u.low->scale[k].as<float>()[begin / code_block],
                 n, x);
  });
}

// Adds what Kahan's rounding has kept of a parameter.
template <class S>
void add_rest(const Update& u, int64_t begin, int64_t n, float* x) {
  const S* const rest = u.low->compensation.as<S>() + begin;
  for_each_vec<float>(n, [&](int64_t i, int64_t count) {
    write(x + i, read<float>(x + i, count) + read<float>(rest + i, count), count);
  });
}

template <class S>
void store_param(const Update& u, int64_t begin, int64_t n, double steps, const float* x) {
  S* const p = u.param.as<S>() + begin;
  if (u.low->rounding == Rounding::Kahan)
    return store_compensated(x, n, p, u.low->compensation.as<S>() + begin);
  const RandomBits random(*u.low, begin, n, steps, /*for_states=*/false);
  for (int64_t i = 0; i < n; ++i) p[i] = round_stochastic<S>(x[i], random.word[i]);
}

// As codes or bf16; what is f32 is written already. To the nearest bf16, a mean of a decay rate
// near 1, which moves by less than the last of 8 bits, would stand still.
void store_states(const Update& u, int64_t begin, int64_t n, double steps, float* const* state) {
  std::optional<RandomBits> random;
  for (size_t k = 0; k < Update::max_states; ++k) {
    const View& s = u.state[k];
    if (s && s.dtype == u8)
      visit_code(u.low->code, u.low->nonnegative >> k & 1, [&]<class Code, bool nonnegative>() {
        encode<Code, nonnegative>(state[k], n, s.as<uint8_t>() + begin,
                                  u.low->scale[k].as<float>() + begin / code_block);
      });
    if (!s || s.dtype != bf16) continue;
    if (!random) random.emplace(*u.low, begin, n, steps, /*for_states=*/true);
    BFloat16* const to = s.as<BFloat16>() + begin;
    for (int64_t i = 0; i < n; ++i)
      to[i] = round_stochastic<BFloat16>(state[k][i], bits_of_state(random->word[i], int(k)));
  }
}

}  // namespace

template <std::floating_point T>
BlockAt<T, T> Blocks<T, T>::converted(int64_t begin, int64_t n) {
  const Update& u = update_;
  BlockAt<T, T> at{as_type(u.param, begin, n, param_), as_type(u.grad, begin, n, grad_), {}};
  for (size_t k = 0; k < Update::max_states; ++k) {
    if (u.state[k].dtype == u8)
      decode_state(u, k, begin, n, at.state[k] = state_[k]);
    else
      at.state[k] = as_type(u.state[k], begin, n, state_[k]);
  }
  if (u.low && u.low->rounding == Rounding::Kahan)
    visit_half(u.param.dtype, [&]<class S>() { add_rest<S>(u, begin, n, param_); });
  return at;
}

template <std::floating_point T>
void Blocks<T, T>::convert_back(int64_t begin, int64_t n, const BlockAt<T, T>& at, double steps,
                                Writes writes) const {
  const Update& u = update_;
  if (writes.param && at.param == param_) {
    if (u.low && u.low->rounding != Rounding::Nearest)
      visit_half(u.param.dtype, [&]<class S>() { store_param<S>(u, begin, n, steps, param_); });
    else
      convert_into(u.param, begin, n, param_);
  }
  if (writes.states && u.low) store_states(u, begin, n, steps, at.state);
}

// (Parameters of f64 are stored as they are: only their gradients have other dtypes.)
template <>
BlockAt<double, double> Blocks<double, double>::converted(int64_t begin, int64_t n) {
  BlockAt<double, double> at = as_stored_at<double, double>(update_, begin);
  at.grad = as_type(update_.grad, begin, n, grad_);
  return at;
}
template <>
void Blocks<double, double>::convert_back(int64_t, int64_t, const BlockAt<double, double>&, double,
                                          Writes) const {}

template class Blocks<float, float>;

void encode_blocks(Launch&, StateCode code, bool is_nonnegative, In x, Out codes, Out scale) {
  visit_code(code, is_nonnegative, [&]<class Code, bool nonnegative>() {
    for (int64_t i = 0; i < x.size(); i += code_block)
      encode<Code, nonnegative>(x.as<float>() + i, std::min(code_block, x.size() - i),
                                codes.as<uint8_t>() + i, scale.as<float>() + i / code_block);
  });
}

void decode_blocks(Launch&, StateCode code, bool is_nonnegative, In codes, In scale, Out x) {
  visit_code(code, is_nonnegative, [&]<class Code, bool>() {
    for (int64_t i = 0; i < x.size(); i += code_block)
      decode<Code>(codes.as<uint8_t>() + i, scale.as<float>()[i / code_block],
                   std::min(code_block, x.size() - i), x.as<float>() + i);
  });
}

}  // namespace mixtape::kernels::cpu::inline MIXTAPE_TARGET
