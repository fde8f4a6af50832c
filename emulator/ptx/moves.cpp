// Loads, stores, atomics, conversions and shuffles.
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

#include "emulator/ptx/numbers.h"
#include "emulator/ptx/text.h"

namespace mixtape::ptx {
namespace {

BF16 to_bf16(float x) { return {to_bf16_bits(x)}; }
uint32_t to_tf32(float x) {  // to nearest, ties away from zero
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if (x != x) return 0x7fffffff;
  return (u & 0x7f800000u) != 0x7f800000u ? (u + 0x1000u) & ~0x1fffu : u;
}

// A register may be wider than the type of its value: signed numbers are then sign-extended.
template <class T, class F>
void put(Warp& w, Slot s, int width, uint32_t mask, F f) {
  if (width == sizeof(T)) return each(mask, w.at<T>(s), f);
  if constexpr (std::is_integral_v<T>) {
    const auto wide = [&]<class W>(W* to) { each(mask, to, [&](int l) { return W(T(f(l))); }); };
    constexpr bool is_signed = std::is_signed_v<T>;
    if (width == 2) wide(w.at<std::conditional_t<is_signed, int16_t, uint16_t>>(s));
    if (width == 4) wide(w.at<std::conditional_t<is_signed, int32_t, uint32_t>>(s));
    if (width == 8) wide(w.at<std::conditional_t<is_signed, int64_t, uint64_t>>(s));
  } else if constexpr (sizeof(T) ==
                       2) {  // PTX does not define the upper bits of a register with a half
    if (width == 4) each(mask, w.at<uint32_t>(s), [&](int l) { return uint32_t(f(l).bits); });
  }
}
template <class T>
void get(Warp& w, Slot s, int width, T (&to)[lanes]) {
  const char* const from = w.at<char>(s);
  if (width == sizeof(T))
    std::memcpy(to, from, sizeof to);
  else
    for (int l = 0; l < lanes; ++l) std::memcpy(&to[l], from + l * width, sizeof(T));
}

// Calls f with a number of the named type.
template <class F>
Run with_type(std::string_view name, F f) {
  if (name == "s8") return f(int8_t());
  if (name == "u8" || name == "b8") return f(uint8_t());
  if (name == "s16") return f(int16_t());
  if (name == "u16" || name == "b16") return f(uint16_t());
  if (name == "s32") return f(int32_t());
  if (name == "u32" || name == "b32") return f(uint32_t());
  if (name == "s64") return f(int64_t());
  if (name == "u64" || name == "b64") return f(uint64_t());
  if (name == "f16") return f(F16());
  if (name == "bf16") return f(BF16());
  if (name == "f32") return f(float());
  if (name == "f64") return f(double());
  return nullptr;
}

// --- memory ---

template <class T, int n>
void load(Warp& w, const Code& c, uint32_t mask) {
  char* from[lanes];
  w.locate(c, c.at[1], n * sizeof(T), mask, from);
  const Slot* const to = n == 1 ? &c.at[0] : w.list(c);
  T values[n][lanes];
  each_bit(mask, [&](int l) {
    if (c.space != Space::Param) w.touch(l, from[l], n * sizeof(T), Access::Read);
    for (int k = 0; k < n; ++k) std::memcpy(&values[k][l], from[l] + k * sizeof(T), sizeof(T));
  });
  for (int k = 0; k < n; ++k)
    put<T>(w, to[k], c.width[0], mask, [&](int l) { return values[k][l]; });
}
template <class T, int n>
void store(Warp& w, const Code& c, uint32_t mask) {
  char* to[lanes];
  w.locate(c, c.at[0], n * sizeof(T), mask, to);
  const Slot* const from = n == 1 ? &c.at[1] : w.list(c);
  const size_t width = c.width[0];
  const char* at[n];
  for (int k = 0; k < n; ++k) at[k] = w.at<char>(from[k]);
  each_bit(mask, [&](int l) {
    bool same = true;
    for (int k = 0; k < n && watch_races; ++k)
      same = same && std::memcmp(to[l] + k * sizeof(T), at[k] + size_t(l) * width, sizeof(T)) == 0;
    w.touch(l, to[l], n * sizeof(T), Access::Write, same);
    for (int k = 0; k < n; ++k)
      std::memcpy(to[l] + k * sizeof(T), at[k] + size_t(l) * width, sizeof(T));
  });
}

template <class T, class F>
void atomic(Warp& w, const Code& c, uint32_t mask) {  // d, [a], b; without d for red
  char* to[lanes];
  w.locate(c, c.at[1], sizeof(T), mask, to);
  each_bit(mask, [&](int l) {
    w.touch(l, to[l], sizeof(T), Access::Atomic);
    T old;
    std::memcpy(&old, to[l], sizeof old);
    const T now = F{}(old, w.at<T>(c.at[2])[l]);
    std::memcpy(to[l], &now, sizeof now);
    if (c.at[0] > 0) w.at<T>(c.at[0])[l] = old;
  });
}

// [to], [from], 16, valid; at[3] is a predicate that makes all of it zeros
void copy_async(Warp& w, const Code& c, uint32_t mask) {
  char *to[lanes], *from[lanes];
  Code there = c;
  there.space = Space::Shared;
  there.offset = int64_t(c.list);
  there.width[1] = c.width[0];
  w.locate(there, c.at[0], 16, mask, to);
  const uint32_t zeros = w.predicate(c.at[3]);
  // (Bytes beyond `valid` are not read, but the address must be aligned.)
  there.space = Space::Global;
  there.offset = c.offset;
  there.width[1] = 8;
  each_bit(mask, [&](int l) {
    Copy copy{to[l], {}, w.group[size_t(l)]};
    const uint32_t valid = zeros >> l & 1 ? 0 : w.at<uint32_t>(c.at[2])[l];
    if (valid > 16) w.fault(l, "cp.async of more bytes than it copies");
    if (valid > 0) {
      const uint64_t address = w.at<uint64_t>(c.at[1])[l] + uint64_t(c.offset);
      if (address % 16 != 0) w.fault(l, "cp.async from a misaligned address");
      w.locate(there, c.at[1], int(valid), 1u << l, from);
      w.touch(l, from[l], int(valid), Access::Read);
      std::memcpy(copy.from, from[l], valid);
    }
    w.touch(l, to[l], 16, Access::Write);
    std::memset(to[l], 0xff, 16);
    w.copies[size_t(l)].push_back(copy);
  });
}
void copy_commit(Warp& w, const Code&, uint32_t mask) {
  each_bit(mask, [&](int l) { ++w.group[size_t(l)]; });
}
void copy_wait(Warp& w, const Code& c,
               uint32_t mask) {  // until at most c.offset groups are in flight
  each_bit(mask, [&](int l) {
    auto& all = w.copies[size_t(l)];
    size_t done = 0;
    for (; done < all.size() && all[done].group < w.group[size_t(l)] - int(c.offset); ++done)
      std::memcpy(all[done].to, all[done].from, 16);
    all.erase(all.begin(), all.begin() + std::ptrdiff_t(done));
  });
}

// --- cvt ---

struct How {
  Round round = Round::None;
  bool to_integer = false, saturate = false, flush = false;
};
How how_of(int32_t target) {
  return {Round(target & 7), (target & 8) != 0, (target & 16) != 0, (target & 32) != 0};
}
template <class T>
T rounded(T x, Round r) {
  switch (r) {
    case Round::None:
      return x;
    case Round::Near:
      return std::nearbyint(x);
    case Round::Zero:
      return std::trunc(x);
    case Round::Down:
      return std::floor(x);
    default:
      return std::ceil(x);
  }
}
template <class D, class S>
D convert_one(S v, How how) {
  if constexpr (std::is_same_v<S, F16> || std::is_same_v<S, BF16>) {
    return convert_one<D>(widen(v), how);
  } else if constexpr (std::is_same_v<D, F16>) {
    if (v != v) return {0x7fff};
    return {std::bit_cast<uint16_t>(_Float16(v))};
  } else if constexpr (std::is_same_v<D, BF16>) {
    return to_bf16(float(v));
  } else if constexpr (std::is_floating_point_v<D>) {
    if constexpr (std::is_same_v<S, float>) {
      if (how.flush) v = flush(v);
    }
    if constexpr (std::is_floating_point_v<S>) {
      if (how.to_integer) v = rounded(v, how.round);
    }
    D r = directed(D(v), v, how.to_integer ? Round::None : how.round);
    if (how.saturate) r = r > 0 ? (r < 1 ? r : D(1)) : D(0);
    if constexpr (std::is_same_v<D, float>) {
      if (how.flush) r = flush(r);
    }
    return r;
  } else if constexpr (std::is_floating_point_v<S>) {
    using Limits = std::numeric_limits<D>;
    // (as CUDA documents for 64 bits; for others it is 0)
    if (v != v) return sizeof(D) == 8 ? D(uint64_t{1} << 63) : D(0);
    const double r = rounded(double(v), how.round);
    if (r >= std::ldexp(1.0, Limits::digits)) return Limits::max();
    if (r <= double(Limits::min())) return Limits::min();
    return D(r);
  } else {
    if (how.saturate) {
      __extension__ typedef __int128 Wide;
      const Wide wide = v;
      if (wide > Wide(std::numeric_limits<D>::max())) return std::numeric_limits<D>::max();
      if (wide < Wide(std::numeric_limits<D>::min())) return std::numeric_limits<D>::min();
    }
    return D(v);
  }
}
template <class D, class S>
void convert(Warp& w, const Code& c, uint32_t mask) {
  S from[lanes];
  get(w, c.at[1], c.width[1], from);
  if (c.target == 0)  // the common case, which vectorises
    put<D>(w, c.at[0], c.width[0], mask, [&](int l) { return convert_one<D>(from[l], How{}); });
  else
    put<D>(w, c.at[0], c.width[0], mask,
           [&, how = how_of(c.target)](int l) { return convert_one<D>(from[l], how); });
}
void convert_tf32(Warp& w, const Code& c, uint32_t mask) {
  each(mask, w.at<uint32_t>(c.at[0]),
       [from = w.at<float>(c.at[1])](int l) { return to_tf32(from[l]); });
}

// --- mov between a register and its parts ---

template <int part, int parts, bool apart>
void pack(Warp& w, const Code& c, uint32_t mask) {
  const Slot* const small = w.list(c);
  char* const whole = w.at<char>(c.at[0]);
  constexpr int width = part * parts;
  for (int k = 0; k < parts; ++k) {
    if (small[k] == Special::sink) continue;
    char* const p = w.at<char>(small[k]);
    each_bit(mask, [&](int l) {
      char* const there = whole + l * width + k * part;
      std::memcpy(apart ? p + l * part : there, apart ? there : p + l * part, part);
    });
  }
}

// --- between lanes ---

enum class Shuffle { Up, Down, Butterfly, Index };
template <Shuffle kind>
void shuffle(Warp& w, const Code& c, uint32_t mask) {  // d|p, a, b, c
  uint32_t from[lanes];
  std::memcpy(from, w.at<uint32_t>(c.at[2]), sizeof from);
  uint32_t result[lanes], in_range = 0;
  each_bit(mask, [&](int l) {
    const uint32_t b = w.at<uint32_t>(c.at[3])[l] & 31, packed = w.at<uint32_t>(c.at[4])[l];
    const int segment = int(packed >> 8 & 31), bound = int(packed & 31);
    const int last = (l & segment) | (bound & ~segment), first = l & segment;
    int source = 0;
    bool good = false;
    switch (kind) {
      case Shuffle::Up:
        source = l - int(b), good = source >= last;
        break;
      case Shuffle::Down:
        source = l + int(b), good = source <= last;
        break;
      case Shuffle::Butterfly:
        source = l ^ int(b), good = source <= last;
        break;
      case Shuffle::Index:
        source = first | (int(b) & ~segment), good = source <= last;
        break;
    }
    if (!good) source = l;
    // PTX does not define the value of an exited lane: NaN.
    result[l] = mask >> source & 1 ? from[source] : ~0u;
    in_range |= uint32_t(good) << l;
  });
  each(mask, w.at<uint32_t>(c.at[0]), [&](int l) { return result[l]; });
  if (c.at[1]) set_bits(w.predicate(c.at[1]), mask, in_range);
}

enum class Vote { Any, All, Uniform, Ballot };
template <Vote kind>
void vote(Warp& w, const Code& c, uint32_t mask) {  // d, a
  const uint32_t yes = (c.width[0] ? ~w.predicate(c.at[1]) : w.predicate(c.at[1])) & mask;
  if (kind == Vote::Ballot) return each(mask, w.at<uint32_t>(c.at[0]), [=](int) { return yes; });
  const bool r = kind == Vote::Any   ? yes != 0
                 : kind == Vote::All ? yes == mask
                                     : yes == 0 || yes == mask;
  set_bits(w.predicate(c.at[0]), mask, r ? ~0u : 0);
}
template <class T>
void match_any(Warp& w, const Code& c, uint32_t mask) {  // d, a
  const T* const a = w.at<T>(c.at[1]);
  each_bit(mask, [&](int l) {
    uint32_t same = 0;
    each_bit(mask, [&](int k) { same |= uint32_t(a[k] == a[l]) << k; });
    w.at<uint32_t>(c.at[0])[l] = same;
  });
}
template <class T, class F>
void redux(Warp& w, const Code& c, uint32_t mask) {  // d, a
  const T* const a = w.at<T>(c.at[1]);
  T r = a[__builtin_ctz(mask)];
  each_bit(mask & (mask - 1), [&](int l) { r = F{}(r, a[l]); });
  each(mask, w.at<T>(c.at[0]), [=](int) { return r; });
}

struct Max {
  template <class T>
  T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};
struct Min {
  template <class T>
  T operator()(T a, T b) const {
    return a < b ? a : b;
  }
};
struct Sum {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct Or {
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct Swap {
  template <class T>
  T operator()(T, T b) const {
    return b;
  }
};
template <class F>
Run atomic_of(std::string_view type) {
  if (type == "s32") return atomic<int32_t, F>;
  if (type == "u32" || type == "b32") return atomic<uint32_t, F>;
  if (type == "s64") return atomic<int64_t, F>;
  if (type == "u64" || type == "b64") return atomic<uint64_t, F>;
  return nullptr;
}

}  // namespace

Run memory_op(std::string_view kind, std::string_view type, int n) {
  return with_type(type, [&](auto number) -> Run {
    using T = decltype(number);
    if (kind == "ld") return n == 1 ? load<T, 1> : n == 2 ? load<T, 2> : load<T, 4>;
    return n == 1 ? store<T, 1> : n == 2 ? store<T, 2> : store<T, 4>;
  });
}

Run convert_op(std::string_view name, int32_t& how) {
  std::vector<std::string_view> parts = parts_of(name);
  if (parts.size() < 3) return nullptr;
  if (name == "cvt.rna.tf32.f32") return convert_tf32;
  how = 0;
  for (size_t i = 1; i + 2 < parts.size(); ++i) {
    const std::string_view p = parts[i];
    const bool integer = p.size() == 3 && p.starts_with('r') && p[2] == 'i';
    if (p == "rn" || p == "rni")
      how |= int(Round::Near);
    else if (p == "rz" || p == "rzi")
      how |= int(Round::Zero);
    else if (p == "rm" || p == "rmi")
      how |= int(Round::Down);
    else if (p == "rp" || p == "rpi")
      how |= int(Round::Up);
    else if (p == "sat")
      how |= 16;
    else if (p == "ftz")
      how |= 32;
    else
      return nullptr;
    if (integer) how |= 8;
  }
  if (how == int(Round::Near)) how = 0;
  const std::string_view to = parts[parts.size() - 2], from = parts.back();
  // (f16 is only rounded to nearest, and bf16 only from f32: others would round twice.)
  if (to.ends_with("f16") && (how != 0 || (to == "bf16" && from != "f32"))) return nullptr;
  return with_type(to, [&](auto d) {
    return with_type(from, [](auto s) -> Run { return convert<decltype(d), decltype(s)>; });
  });
}

Run pack_op(int width, int parts, bool apart) {
  if (width == 4 && parts == 2) return apart ? pack<2, 2, true> : pack<2, 2, false>;
  if (width == 8 && parts == 2) return apart ? pack<4, 2, true> : pack<4, 2, false>;
  if (width == 8 && parts == 4) return apart ? pack<2, 4, true> : pack<2, 4, false>;
  return nullptr;
}

Run special_op(std::string_view name) {
  static const std::map<std::string_view, Run> ops = {
      {"shfl.sync.up.b32", shuffle<Shuffle::Up>},
      {"shfl.sync.down.b32", shuffle<Shuffle::Down>},
      {"shfl.sync.bfly.b32", shuffle<Shuffle::Butterfly>},
      {"shfl.sync.idx.b32", shuffle<Shuffle::Index>},
      {"vote.sync.any.pred", vote<Vote::Any>},
      {"vote.sync.all.pred", vote<Vote::All>},
      {"vote.sync.uni.pred", vote<Vote::Uniform>},
      {"vote.sync.ballot.b32", vote<Vote::Ballot>},
      {"match.any.sync.b32", match_any<uint32_t>},
      {"match.any.sync.b64", match_any<uint64_t>},
      {"redux.sync.add.s32", redux<int32_t, Sum>},
      {"redux.sync.add.u32", redux<uint32_t, Sum>},
      {"redux.sync.max.s32", redux<int32_t, Max>},
      {"redux.sync.max.u32", redux<uint32_t, Max>},
      {"redux.sync.min.s32", redux<int32_t, Min>},
      {"redux.sync.min.u32", redux<uint32_t, Min>},
      {"redux.sync.or.b32", redux<uint32_t, Or>},
      {"cp.async.cg.shared.global", copy_async},
      {"cp.async.commit_group", copy_commit},
      {"cp.async.wait_group", copy_wait},
  };
  const auto found = ops.find(name);
  if (found != ops.end()) return found->second;
  if (const Run run = tensor_core_op(name)) return run;
  const auto parts = parts_of(name);
  if (parts[0] != "atom" && parts[0] != "red") return nullptr;
  const std::string_view type = parts.back(), how = parts.size() > 2 ? parts[parts.size() - 2] : "";
  if (how == "max") return atomic_of<Max>(type);
  if (how == "min") return atomic_of<Min>(type);
  if (how == "or") return atomic_of<Or>(type);
  if (how == "exch") return atomic_of<Swap>(type);
  if (how == "add") return type == "f32" ? atomic<float, Sum> : atomic_of<Sum>(type);
  return nullptr;
}

}  // namespace mixtape::ptx
