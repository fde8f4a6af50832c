#pragma once
// y = f(x...) element by element, for any functor: one kernel loads n elements of every input, then
// widens, computes, rounds and stores them, so that many loads are in flight and every byte moves
// once. A functor of float serves f32, f16 and bf16, by a branch that all threads take together.

#include "kernels/common/elementwise.h"
#include "kernels/common/order.h"  // Bits
#include "kernels/cuda/elementwise/elementwise_plan.h"
#include "kernels/cuda/gpu.cuh"
#include "kernels/kernels.h"

namespace mixtape::kernels::cuda {
using namespace internal;

// Calls f.operator()<S>() with the memory type of an operand that is computed as V: float covers
// f32, f16 and bf16, double all numbers, Whole integers; other types cover themselves.
template <class V, class F>
MIXTAPE_HD void visit_memory(DType t, F f) {
  if constexpr (std::is_same_v<V, float>) {
    if (t == f32)
      f.template operator()<float>();
    else if (t == f16)
      f.template operator()<Half>();
    else
      f.template operator()<BFloat16>();
  } else if constexpr (std::is_same_v<V, double> || std::is_same_v<V, Whole>) {
    if (std::is_same_v<V, double> && t == f64)
      f.template operator()<double>();
    else if (std::is_same_v<V, double> && t == f32)
      f.template operator()<float>();
    else if (t == i64)
      f.template operator()<int64_t>();
    else if (t == i32)
      f.template operator()<int32_t>();
    else
      f.template operator()<uint8_t>();
  } else {
    f.template operator()<V>();
  }
}
// As visit_memory, with an unsigned integer of the same size.
template <class V, class F>
MIXTAPE_HD void visit_size(DType t, F f) {
  if constexpr (std::is_same_v<V, float>) {
    if (t == f32)
      f.template operator()<uint32_t>();
    else
      f.template operator()<uint16_t>();
  } else if constexpr (std::is_same_v<V, double> || std::is_same_v<V, Whole>) {
    if (t == f64 || t == i64)
      f.template operator()<uint64_t>();
    else if (t == f32 || t == i32)
      f.template operator()<uint32_t>();
    else
      f.template operator()<uint8_t>();
  } else {
    f.template operator()<Bits<sizeof(V)>>();
  }
}

// Element `at` of data of dtype t: S or, for int64_t, any type of integers or bools.
template <class S>
MIXTAPE_HD S element_of(const S* data, [[maybe_unused]] DType t, int64_t at) {
  if constexpr (std::is_same_v<S, int64_t>) {
    int64_t element = 0;
    visit_memory<Whole>(t, [&]<class M>() { element = reinterpret_cast<const M*>(data)[at]; });
    return element;
  } else {
    return data[at];
  }
}
// Throws Error for a dtype that only stores, whose elements element_of would read as others.
inline void check_computed(DType t) {
  if (only_stores(t)) mixtape::detail::refuse(t);
}
// Calls f.operator()<S>() with the type of a dtype, as element_of takes it.
template <class F>
void visit_elements(DType t, F f) {
  check_computed(t);
  is_float(t) ? visit_float(t, f) : f.template operator()<int64_t>();
}

template <class V, class S>
MIXTAPE_HD V widened(Bits<sizeof(S)> bits) {
  if constexpr (std::is_same_v<S, bool>)
    return bits != 0;
  else if constexpr (std::is_same_v<S, V>)
    return std::bit_cast<S>(bits);
  else
    return V(gpu::widen(std::bit_cast<S>(bits)));
}
template <class S, class V>
MIXTAPE_HD Bits<sizeof(S)> rounded_bits(V v) {
  return std::bit_cast<Bits<sizeof(S)>>(gpu::round_to<S>(v));
}

// Registers for loaded elements, 16 bytes of the widest type of a computation: packed as in memory,
// or one in each slot of `slot` bytes.
struct Unit {
  uint32_t word[4];

  template <int slot>
  __device__ Bits<slot> get(int j) const {
    if constexpr (slot == 8)
      return word[2 * j] | uint64_t(word[2 * j + 1]) << 32;
    else
      return Bits<slot>(word[j * slot / 4] >> (j * slot % 4 * 8));
  }
  template <int slot>
  __device__ void put(int j, Bits<slot> bits) {
    word[j * slot / 4] = uint32_t(bits);
    if constexpr (slot == 8) word[2 * j + 1] = uint32_t(bits >> 32);
  }
};
template <class V>
constexpr int slot_of = sizeof(V) == 8 ? 8 : 4;

// True for functors whose code is long, and which wait for arithmetic rather than for memory.
template <class F>
constexpr bool is_costly = false;

// The form of a kernel: threads take neighbours in groups, of which each access has 16 bytes of the
// widest type. Elements of 8 bytes are whole lines across a warp anyway, so these are taken one by
// one, as costly functors take theirs: what they call is compiled once.
template <class F, int operands, class... V>
struct Form {
  static constexpr int slot = std::max({slot_of<V>...});
  static constexpr bool groups = slot < 8 && !is_costly<F>;
  // The elements of a unit: half as many if registers would not hold all operands.
  static constexpr int unit = groups ? (operands > 8 ? 8 : 16) / slot : 1;
};

// The elements of one input that a thread handles at once: two units in groups, or one unit of
// single elements.
template <class V, int unit, int units>
struct Incoming {
  static constexpr int n = unit * units, slot = slot_of<V>;
  Unit in[units];
  V value[n];

  // Loads element e, or the group that begins there: one unit or all.
  __device__ void fetch(const MapOperand& x, int64_t at, int e, int group) {
    if (!x.data) return;
    visit_size<V>(x.dtype, [&]<class U>() {
      [[maybe_unused]] constexpr int bytes = int(sizeof(U)) * unit;
      const U* const p = reinterpret_cast<const U*>(x.data) + at;
      if constexpr (units == 1) {
        in[0].template put<slot>(e, *p);
      } else if (!x.packed) {
        const U same = *p;
#pragma unroll
        for (int j = 0; j < unit; ++j) {
          in[e / unit].template put<slot>(j, same);
          if (group == n) in[1].template put<slot>(j, same);
        }
      } else if (group == unit) {
        if constexpr (bytes < 4) {
          in[e / unit].word[0] = gpu::load_as<Bits<bytes>>(p);
        } else {
          const auto all = gpu::load_as<gpu::Pack<uint32_t, bytes / 4>>(p);
          for (int w = 0; w < bytes / 4; ++w) in[e / unit].word[w] = all.v[w];
        }
      } else if constexpr (bytes < 4) {
        const uint32_t all = gpu::load_as<Bits<2 * bytes>>(p);
        in[0].word[0] = all;
        in[1].word[0] = all >> (8 * bytes);
      } else if constexpr (bytes <= 8) {
        const auto all = gpu::load_as<gpu::Pack<uint32_t, bytes / 2>>(p);
        for (int w = 0; w < bytes / 4; ++w) {
          in[0].word[w] = all.v[w];
          in[1].word[w] = all.v[bytes / 4 + w];
        }
      }
    });
  }

  __device__ void widen(const MapOperand& x) {
    using Self = std::conditional_t<std::is_same_v<V, Whole>, int64_t, V>;
    if (!x.data) {
#pragma unroll
      for (int e = 0; e < n; ++e) value[e] = widened<V, Self>(Bits<sizeof(V)>(x.number));
      return;
    }
    visit_memory<V>(x.dtype, [&]<class S>() {
      const auto from = [&]<int slot>() {
#pragma unroll
        for (int e = 0; e < n; ++e)
          value[e] = widened<V, S>(Bits<sizeof(S)>(in[e / unit].template get<slot>(e % unit)));
      };
      if (units == 2 && x.packed)
        from.template operator()<sizeof(S)>();
      else
        from.template operator()<slot>();
    });
  }
};

// The elements of one output that a thread handles at once.
template <class V, int unit, int units>
struct Outgoing {
  static constexpr int n = unit * units;
  V value[n];
  Bits<slot_of<V>> bits[n];

  __device__ void round(const MapOperand& y) {
    if (!y.data) return;
    visit_memory<V>(y.dtype, [&]<class S>() {
#pragma unroll
      for (int e = 0; e < n; ++e) bits[e] = rounded_bits<S>(value[e]);
    });
  }
  // Stores element e, or the group that begins there.
  __device__ void store(const MapOperand& y, int64_t at, int e, int group) const {
    if (!y.data) return;
    visit_size<V>(y.dtype, [&]<class U>() {
      U* const p = reinterpret_cast<U*>(y.data) + at;
      if (units == 1)
        *p = U(bits[e]);
      else if (group == unit)
        put<unit>(p, e);
      else if constexpr (n * sizeof(U) <= 16)
        put<n>(p, 0);
    });
  }

 private:
  template <int count, class U>
  __device__ void put(U* p, int e) const {
    gpu::Pack<U, count> all;
#pragma unroll
    for (int j = 0; j < count; ++j) all.v[j] = U(bits[e + j]);
    gpu::store_global(p, all);
  }
};

// The result of a functor with several outputs.
template <class V, int n>
struct Values {
  V v[n];
};

// Computes a thread's elements of those from `first` on that its warp handles: two units in groups
// of neighbours, or one unit of single elements, which are neighbours across the warp.
template <int unit, int units, int outs, class Out, class F, class Plan, int... k, class... X>
__device__ __forceinline__ void map_some(const F& f, const Plan& plan, int64_t first,
                                         std::integer_sequence<int, k...>, X&&... x) {
  constexpr int n = units * unit;
  const int group = units == 2 ? plan.group : 1;
  const auto index = [&](int e) { return first + e * gpu::warp_size + gpu::lane() * group; };
  // act(e) for the first element e of each group
  const auto for_groups = [&](auto act) {
#pragma unroll
    for (int e = 0; e < n; e += units == 2 ? unit : 1)
      if (units == 2 ? e == 0 || group == unit : index(e) < plan.count) act(e);
  };
  Outgoing<Out, unit, units> y[outs];
  int64_t to[n][outs];
  for_groups([&](int e) {
    int64_t at[outs + sizeof...(k)];
    plan.walk.find(index(e), at);
    for (int o = 0; o < outs; ++o) to[e][o] = at[o];
    (x.fetch(plan.operand[outs + k], at[outs + k], e, group), ...);
  });
  (x.widen(plan.operand[outs + k]), ...);
#pragma unroll
  for (int e = 0; e < n; ++e) {
    if constexpr (outs == 1) {
      y[0].value[e] = f(x.value[e]...);
    } else {
      const Values<Out, outs> all = f(x.value[e]...);
#pragma unroll
      for (int o = 0; o < outs; ++o) y[o].value[e] = all.v[o];
    }
  }
#pragma unroll
  for (int o = 0; o < outs; ++o) y[o].round(plan.operand[o]);
  for_groups([&](int e) {
#pragma unroll
    for (int o = 0; o < outs; ++o) y[o].store(plan.operand[o], to[e][o], e, group);
  });
}

// y = f(x...), or several outputs as Values. A warp takes 64 units at a time.
template <class F, int outs, class Out, class... In>
__global__ void map_elements(F f, MapPlan<outs + int(sizeof...(In))> plan) {
  using Taken = Form<F, outs + int(sizeof...(In)), Out, In...>;
  constexpr int unit = Taken::unit;
  using Y = std::conditional_t<outs == 1, Out, Values<Out, outs>>;
  gpu::Function<F, Y, In...> of(f);
  const std::make_integer_sequence<int, int(sizeof...(In))> k;
  const int64_t tile = gpu::warp_size * unit * 2;
  for (int64_t first = gpu::global_thread() / gpu::warp_size * tile; first < plan.count;
       first += gpu::all_threads() * unit * 2) {
    if constexpr (Taken::groups) {
      if (plan.group > 1 && first + tile <= plan.count) {
        map_some<unit, 2, outs, Out>(of, plan, first, k, Incoming<In, unit, 2>()...);
        continue;
      }
    }
#pragma unroll 1
    for (int half = 0; half < 2; ++half)
      map_some<unit, 1, outs, Out>(of, plan, first + half * tile / 2, k,
                                   Incoming<In, unit, 1>()...);
  }
}

// Launches map_elements. Operands are the outputs, then the inputs, of one shape.
template <int outs, class Out, class... In, class F>
void start_map(Launch& launch, const char* name, F f,
               const MapPlan<outs + int(sizeof...(In))>& plan) {
  constexpr int n = 2 * Form<F, outs + int(sizeof...(In)), Out, In...>::unit, threads = 256;
  if (plan.count == 0) return;
  gpu::launch({name,
               gpu::blocks_for(ceil_div(plan.count, n), threads, launch.device.index),
               {threads, 1, 1}},
              launch.stream, map_elements<F, outs, Out, In...>, f, plan);
}

// y = f(x...). Out and In are element types, or float, double or Whole (visit_memory).
template <class Out, class... In, class F, class... V>
void map(Launch& launch, const char* name, F f, const View& y, const V&... x) {
  start_map<1, Out, In...>(launch, name, f,
                           plan_map<1 + int(sizeof...(In))>(
                               {&y, &x...}, Form<F, 1 + int(sizeof...(In)), Out, In...>::unit));
}

// An input, or a number in its place.
struct Argument {
  const View* view = nullptr;
  double number = 0;
};

// y = f(x...) for several outputs, which may be absent, computed in V.
template <class V, class Out = V, int outs, int ins, class F>
void map_numbers(Launch& launch, const char* name, F f, const View* const (&y)[outs],
                 const Argument (&x)[ins]) {
  const View* views[outs + ins];
  for (int k = 0; k < outs; ++k) views[k] = y[k];
  for (int k = 0; k < ins; ++k) views[outs + k] = x[k].view;
  MapPlan<outs + ins> plan = plan_map<outs + ins>(views, Form<F, outs + ins, Out, V>::unit);
  for (int k = 0; k < ins; ++k)
    plan.operand[outs + k].number = std::bit_cast<Bits<sizeof(V)>>(number<V>(x[k].number));
  [&]<int... k>(std::integer_sequence<int, k...>) {
    start_map<outs, Out, decltype((void)k, V())...>(launch, name, f, plan);
  }(std::make_integer_sequence<int, ins>());
}

// Calls run.operator()<V>() with the type in which a (float) dtype is computed.
template <class Run>
void visit_float_math(DType t, Run run) {
  if (t == f64)
    run.template operator()<double>();
  else
    run.template operator()<float>();
}
template <class Run>
void visit_math(DType t, Run run) {
  if (is_float(t))
    visit_float_math(t, run);
  else
    run.template operator()<Whole>();
}

}  // namespace mixtape::kernels::cuda
