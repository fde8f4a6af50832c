#pragma once
// Parameters and states that are not stored the plain way (kernels/common/update.h: LowMemory): a
// warp converts a block of 256 elements, 8 in each lane, to f32, updates it, and converts it back.

#include "kernels/common/block_codes.h"
#include "kernels/common/rounding.h"
#include "kernels/cuda/optim/elements.cuh"

namespace mixtape::kernels::cuda {

constexpr int block_warps = chunk_threads / gpu::warp_size;

// A lane's two parts of the block that starts at element `first`.
struct LaneOfBlock {
  Four part[2];
  __device__ LaneOfBlock(int64_t first, int64_t end, bool aligned) {
#pragma unroll
    for (int h = 0; h < 2; ++h) part[h] = four_at(first + 128 * h + 4 * gpu::lane(), end, aligned);
  }
};

// --- codes ---

__device__ inline uint32_t fetch_codes(const void* data, const Four& f) {
  const uint8_t* const p = static_cast<const uint8_t*>(data) + f.at;
  if (f.whole) return gpu::load_as<uint32_t>(p);
  uint32_t codes = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e)
    if (e < f.count) codes |= uint32_t(p[e]) << (8 * e);
  return codes;
}
__device__ inline void store_codes(void* data, const Four& f, uint32_t codes) {
  uint8_t* const p = static_cast<uint8_t*>(data) + f.at;
  if (f.whole) return gpu::store_global(p, codes);
#pragma unroll
  for (int e = 0; e < 4; ++e)
    if (e < f.count) p[e] = uint8_t(codes >> (8 * e));
}

template <class Code>
__device__ void decode_block(const void* codes, float scale, const LaneOfBlock& lane,
                             float (&x)[8]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t bits = fetch_codes(codes, lane.part[h]);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[4 * h + e] = Code::decode(uint8_t(bits >> (8 * e))) * scale;
  }
}
// All lanes of a warp call it together.
template <class Code, bool nonnegative>
__device__ void encode_block(const float (&x)[8], const LaneOfBlock& lane, void* codes,
                             float* scale) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i % 4 < lane.part[i / 4].count && magnitude(x[i]) > most) most = magnitude(x[i]);
  for (int mask = gpu::warp_size / 2; mask > 0; mask /= 2) {
    const uint32_t other = gpu::shuffle_xor(most, mask);
    most = other > most ? other : most;
  }
  const BlockCode<Code, nonnegative> code(most);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t bits = 0;
#pragma unroll
    for (int e = 0; e < 4; ++e) bits |= uint32_t(code.encode(x[4 * h + e])) << (8 * e);
    store_codes(codes, lane.part[h], bits);
  }
  if (gpu::lane() == 0) *scale = code.scale;
}

// --- optimizer steps ---

// An Update with its LowMemory in a kernel's parameters.
template <class O>
struct LowItem {
  ParamItem<element_states<O>> plain;
  float* scale[element_states<O>];
  void* compensation;
  const float* steps;
  uint64_t seed;
  int64_t first;
  uint32_t index;
  Rounding rounding;
  StateCode code;
  DType state_type[element_states<O>];

  LowItem() = default;
  LowItem(const ParamItem<element_states<O>>& item, const Update& u)
      : plain(item),
        compensation(u.low->compensation.data),
        steps(u.steps.as<const float>()),
        seed(u.low->seed),
        first(u.low->first),
        index(u.low->index),
        rounding(u.low->rounding),
        code(u.low->code) {
    for (int k = 0; k < element_states<O>; ++k) {
      scale[k] = u.low->scale[k].template as<float>();
      state_type[k] = u.state[k].dtype;
    }
    plain.aligned = plain.aligned && is_aligned(u.low->compensation);
  }

  template <int k>
  __device__ void load_state(const LaneOfBlock& lane, int64_t block, float (&x)[8]) const {
    if (!plain.state[k]) return;
    const DType type = state_type[k];
    if (type == u8)
      return visit_code(code, nonnegative_states<O> >> k & 1, [&]<class Code, bool>() {
        decode_block<Code>(plain.state[k], scale[k][block], lane, x);
      });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Words<float> bits = fetch<float>(plain.state[k], type, lane.part[h]);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[4 * h + e] = element(bits, type, e);
    }
  }
  template <int k>
  __device__ void store_state(const float (&x)[8], const LaneOfBlock& lane, int64_t block,
                              const Philox::Block (&random)[2]) const {
    if (!plain.state[k]) return;
    const DType type = state_type[k];
    if (type == u8)
      return visit_code(code, nonnegative_states<O> >> k & 1, [&]<class Code, bool nonnegative>() {
        encode_block<Code, nonnegative>(x, lane, plain.state[k], scale[k] + block);
      });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float part[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        part[e] = x[4 * h + e];
        if (type == bf16)
          part[e] = round_stochastic<BFloat16>(part[e], bits_of_state(random[h][size_t(e)], k));
      }
      store(plain.state[k], type, lane.part[h], packed(part, type));
    }
  }
  __device__ void load_param(const Four& four, float* x) const {
    const Words<float> bits = fetch<float>(plain.param, plain.type, four);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = element(bits, plain.type, e);
    if (rounding != Rounding::Kahan) return;
    const Words<float> rest = fetch<float>(compensation, plain.type, four);
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] += element(rest, plain.type, e);
  }
  // The words of `random` are of this lane's part.
  __device__ void store_param(const float (&x)[4], const Four& four, const Draw& draw) const {
    if (rounding == Rounding::Nearest) {
      store(plain.param, plain.type, four, packed(x, plain.type));
      if (plain.shadow) store(plain.shadow, plain.shadow_type, four, packed(x, plain.shadow_type));
    } else if (plain.type == f16) {
      store_half<Half>(x, four, draw);
    } else {
      store_half<BFloat16>(x, four, draw);
    }
  }

 private:
  template <class S>
  __device__ void store_half(const float (&x)[4], const Four& four, const Draw& draw) const {
    Words<float> value, rest;
    if (rounding == Rounding::Stochastic) {
      const Philox::Block random = Philox::bits(draw, uint64_t((first + four.at) / 4));
#pragma unroll
      for (int e = 0; e < 4; ++e)
        value.word[e / 2] |= uint32_t(round_stochastic<S>(x[e], random[size_t(e)]).bits)
                             << (16 * (e % 2));
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const Compensated<S> pair(x[e]);
        value.word[e / 2] |= uint32_t(pair.value.bits) << (16 * (e % 2));
        rest.word[e / 2] |= uint32_t(pair.rest.bits) << (16 * (e % 2));
      }
      store(compensation, plain.type, four, rest);
    }
    store(plain.param, plain.type, four, value);
  }
};

// As that of ParamItem.
template <Writes writes, class O, class F>
__device__ void for_elements(const LowItem<O>& p, const Chunk& chunk, float grad_scale, F f) {
  constexpr int states = element_states<O>;
  bool rounds_states = false;
  for (int k = 0; writes.states && k < states; ++k)
    rounds_states = rounds_states || (p.plain.state[k] && p.state_type[k] == bf16);
  Draw draw, draw_for_states;
  if (writes.param && p.rounding == Rounding::Stochastic)
    draw = LowMemory::draw(p.seed, p.index, *p.steps, false);
  if (rounds_states) draw_for_states = LowMemory::draw(p.seed, p.index, *p.steps, true);
  const int warp = int(gpu::thread().x) / gpu::warp_size;
  for (int64_t first = chunk.begin + warp * code_block; first < chunk.end;
       first += block_warps * code_block) {
    const LaneOfBlock lane(first, chunk.end, p.plain.aligned);
    const auto for_states = [&](auto each) {
      [&]<int... k>(std::integer_sequence<int, k...>) {
        (each.template operator()<k>(), ...);
      }(std::make_integer_sequence<int, states>());
    };
    float s[states][8] = {};
    for_states([&]<int k>() { p.template load_state<k>(lane, first / code_block, s[k]); });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Four& four = lane.part[h];
      float x[4];
      p.load_param(four, x);
      const Words<float> grad = fetch<float>(p.plain.grad, p.plain.grad_type, four);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float now[states];
#pragma unroll
        for (int k = 0; k < states; ++k) now[k] = s[k][4 * h + e];
        x[e] = f(four.at + e, x[e], element(grad, p.plain.grad_type, e) * grad_scale,
                 StatesAt<float>{now});
#pragma unroll
        for (int k = 0; k < states; ++k) s[k][4 * h + e] = now[k];
      }
      if (writes.param) p.store_param(x, four, draw);
    }
    Philox::Block random[2] = {};
    for (int h = 0; rounds_states && h < 2; ++h)
      random[h] = Philox::bits(draw_for_states, uint64_t((p.first + lane.part[h].at) / 4));
    if (writes.states)
      for_states(
          [&]<int k>() { p.template store_state<k>(s[k], lane, first / code_block, random); });
  }
}

}  // namespace mixtape::kernels::cuda
