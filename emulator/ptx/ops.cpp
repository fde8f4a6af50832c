// Instructions on plain registers or numbers: arithmetic, comparisons, selection.
#include <bit>
#include <cmath>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <utility>

#include "emulator/ptx/warp.h"

namespace mixtape::ptx {
namespace {

using u16 = uint16_t;
using s16 = int16_t;
using u32 = uint32_t;
using s32 = int32_t;
using u64 = uint64_t;
using s64 = int64_t;
using f32 = float;
using f64 = double;

// The lanes of an operand.
template <class T>
struct Lanes {
  const T* p;
  Lanes(Warp& w, Slot s) : p(w.at<T>(s)) {}
  T operator[](int l) const { return p[l]; }
};
template <>
struct Lanes<bool> {
  uint32_t bits;
  Lanes(Warp& w, Slot s) : bits(w.predicate(s)) {}
  bool operator[](int l) const { return bits >> l & 1; }
};

template <class F, class R, class... A, size_t... i>
void apply(Warp& w, const Code& c, uint32_t mask, std::index_sequence<i...>) {
  const std::tuple<Lanes<A>...> from{Lanes<A>(w, c.at[i + 1])...};
  if constexpr (std::is_same_v<R, bool>) {
    uint32_t bits = 0;
    for (int l = 0; l < lanes; ++l) bits |= uint32_t(bool(F{}(std::get<i>(from)[l]...))) << l;
    set_bits(w.predicate(c.at[0]), mask, bits);
  } else {
    each(mask, w.at<R>(c.at[0]), [&](int l) { return R(F{}(std::get<i>(from)[l]...)); });
  }
}
template <class T>
constexpr Width width_of = std::is_same_v<T, bool> ? 0 : sizeof(T);

template <class Signature>
struct Make;
template <class R, class... A>
struct Make<R(A...)> {
  template <class F>
  static Op op(F) {
    return {[](Warp& w, const Code& c, uint32_t mask) {
              apply<F, R, A...>(w, c, mask, std::index_sequence_for<A...>{});
            },
            {width_of<R>, width_of<A>...}};
  }
};

// Instructions with a carry per lane: f(a..., carry in, carry out), of n numbers.
template <class T, bool in, bool out, class F, size_t... i>
void apply_carry(Warp& w, const Code& c, uint32_t mask, std::index_sequence<i...>) {
  uint32_t& carry = w.predicate(Special::carry);
  const uint32_t before = in ? carry : 0;
  each_bit(mask, [&](int l) {
    bool now = false;
    w.at<T>(c.at[0])[l] = F{}(w.at<T>(c.at[i + 1])[l]..., T(before >> l & 1), now);
    if (out) set_bits(carry, 1u << l, uint32_t(now) << l);
  });
}
template <class T, bool in, bool out, int n, class F>
Op carry_op(F) {
  return {[](Warp& w, const Code& c, uint32_t mask) {
            apply_carry<T, in, out, F>(w, c, mask, std::make_index_sequence<n>{});
          },
          std::vector<Width>(n + 1, sizeof(T))};
}

template <class T>
std::string suffix() {
  if constexpr (std::is_same_v<T, bool>) return ".pred";
  return (std::is_floating_point_v<T> ? ".f"
          : std::is_signed_v<T>       ? ".s"
                                      : ".u") +
         std::to_string(8 * sizeof(T));
}
__extension__ typedef __int128 s128;
__extension__ typedef unsigned __int128 u128;
template <class T>
using Wider = std::conditional_t<
    sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, s128, u128>,
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, s64, u64>,
                       std::conditional_t<std::is_signed_v<T>, s32, u32>>>;

float saturate(float x) { return x > 0 ? (x < 1 ? x : 1.f) : 0.f; }

// a b + c, rounded down, up or towards zero.
enum class Towards { Down, Up, Zero };
float fma_towards(float a, float b, float c, Towards where) {
  const double p = double(a) * b, s = p + c, t = s - p, rest = (p - (s - t)) + (c - t);
  const float r = float(s);
  if (!std::isfinite(s)) return r;
  const int up = where == Towards::Up || (where == Towards::Zero && s < 0) ? 1 : -1;
  const double over = double(r) - s;  // r - s is exact, and rest is too small to change its sign
  const bool too_high = over > 0 || (over == 0 && rest < 0);
  const bool too_low = over < 0 || (over == 0 && rest > 0);
  if (up < 0 && too_high) return std::nextafter(r, -INFINITY);
  if (up > 0 && too_low) return std::nextafter(r, INFINITY);
  return r;
}

// MIXTAPE_PTX_ROUGH: approximations have part of the error that CUDA documents, in a direction that
// depends on the argument.
const bool rough = std::getenv("MIXTAPE_PTX_ROUGH") != nullptr;
float off(float exact, float argument, float relative, float absolute = 0) {
  if (!rough || !std::isfinite(exact) || exact == 0) return exact;
  const uint32_t bits = std::bit_cast<uint32_t>(argument) * 2654435761u;
  const float sign = bits >> 31 ? 1.f : -1.f;
  return exact + sign * (std::fabs(exact) * relative + absolute);
}

class Table {
 public:
  Table() {
    integers<u16, s16, u32, s32, u64, s64>();
    bits<u16, u32, u64>();
    reals<f32, f64>();
    odd_integers();
    approximations();
    carries<u32, u64, s32>();
    predicates();
  }
  std::map<std::string, Op, std::less<>> ops;

 private:
  template <class Signature, class F>
  void add(const std::string& name, F f) {
    ops[name] = Make<Signature>::op(f);
  }

  template <class T, class F>
  void compare(const std::string& how, const std::string& type, F) {
    add<bool(T, T)>("setp." + how + type, [](T a, T b) { return F{}(a, b); });
    add<bool(T, T, bool)>("setp." + how + ".and" + type,
                          [](T a, T b, bool c) { return F{}(a, b) && c; });
    add<bool(T, T, bool)>("setp." + how + ".or" + type,
                          [](T a, T b, bool c) { return F{}(a, b) || c; });
    add<bool(T, T, bool)>("setp." + how + ".xor" + type,
                          [](T a, T b, bool c) { return F{}(a, b) != c; });
  }
  template <class T>
  void ordered(const std::string& type) {
    compare<T>("eq", type, [](T a, T b) { return a == b; });
    compare<T>("lt", type, [](T a, T b) { return a < b; });
    compare<T>("le", type, [](T a, T b) { return a <= b; });
    compare<T>("gt", type, [](T a, T b) { return a > b; });
    compare<T>("ge", type, [](T a, T b) { return a >= b; });
    // (ne of floats is ordered: false with a NaN.)
    compare<T>("ne", type, [](T a, T b) { return a < b || a > b; });
  }

  template <class... T>
  void integers() {
    (integer<T>(suffix<T>()), ...);
  }
  template <class T>
  void integer(const std::string& t) {
    using W = Wider<T>;
    constexpr int width = 8 * sizeof(T);
    ordered<T>(t);
    add<T(T, T)>("add" + t, [](T a, T b) { return a + b; });
    add<T(T, T)>("sub" + t, [](T a, T b) { return a - b; });
    add<T(T, T)>("mul.lo" + t, [](T a, T b) { return W(a) * W(b); });
    add<T(T, T)>("mul.hi" + t, [](T a, T b) { return (W(a) * W(b)) >> width; });
    add<T(T, T, T)>("mad.lo" + t, [](T a, T b, T c) { return W(a) * W(b) + W(c); });
    add<T(T, T, T)>("mad.hi" + t, [](T a, T b, T c) { return T((W(a) * W(b)) >> width) + c; });
    if constexpr (width < 64) {
      add<W(T, T)>("mul.wide" + t, [](T a, T b) { return W(a) * W(b); });
      add<W(T, T, W)>("mad.wide" + t, [](T a, T b, W c) { return W(a) * W(b) + c; });
    }
    // (PTX does not define division by zero; inactive lanes may divide by 0.)
    add<T(T, T)>("div" + t, [](T a, T b) { return b == 0 ? T(-1) : T(W(a) / W(b)); });
    add<T(T, T)>("rem" + t, [](T a, T b) { return b == 0 ? a : T(W(a) % W(b)); });
    add<T(T, T)>("min" + t, [](T a, T b) { return a < b ? a : b; });
    add<T(T, T)>("max" + t, [](T a, T b) { return a > b ? a : b; });
    add<T(T)>("neg" + t, [](T a) { return -a; });
    add<T(T)>("abs" + t, [](T a) { return a < 0 ? -a : a; });
    add<T(T, u32)>("shr" + t,
                   [](T a, u32 n) { return a >> (n < width ? n : width - 1) >> (n >= width); });
    add<T(T)>("mov" + t, [](T a) { return a; });
    add<T(T, T, bool)>("selp" + t, [](T a, T b, bool p) { return p ? a : b; });
  }

  template <class... T>
  void bits() {
    (bit<T>(".b" + std::to_string(8 * sizeof(T))), ...);
  }
  template <class T>
  void bit(const std::string& t) {
    constexpr u32 width = 8 * sizeof(T);
    add<T(T, T)>("and" + t, [](T a, T b) { return a & b; });
    add<T(T, T)>("or" + t, [](T a, T b) { return a | b; });
    add<T(T, T)>("xor" + t, [](T a, T b) { return a ^ b; });
    add<T(T)>("not" + t, [](T a) { return ~a; });
    add<T(T)>("cnot" + t, [](T a) { return a == 0; });
    add<T(T)>("mov" + t, [](T a) { return a; });
    add<T(T, u32)>("shl" + t, [](T a, u32 n) { return n < width ? T(a << n) : T(0); });
    add<T(T, u32)>("shr" + t, [](T a, u32 n) { return n < width ? T(a >> n) : T(0); });
    add<T(T, T, bool)>("selp" + t, [](T a, T b, bool p) { return p ? a : b; });
    compare<T>("eq", t, [](T a, T b) { return a == b; });
    compare<T>("ne", t, [](T a, T b) { return a != b; });
    if constexpr (width >= 32) {
      add<u32(T)>("popc" + t, [](T a) { return std::popcount(a); });
      add<u32(T)>("clz" + t, [](T a) { return std::countl_zero(a); });
      add<T(T)>("brev" + t, [](T a) {
        T r = 0;
        for (u32 i = 0; i < width; ++i) r |= (a >> i & 1) << (width - 1 - i);
        return r;
      });
      add<T(T, T, u32, u32)>("bfi" + t, [](T a, T b, u32 at, u32 n) {
        at &= 255;
        n &= 255;
        if (at >= width || n == 0) return b;
        const T field = (n >= width ? ~T(0) : (T(1) << n) - 1) << at;
        return T((b & ~field) | (a << at & field));
      });
    }
  }

  void odd_integers() {
    extract<u32, s32, u64, s64>();
    add<u32(u32, u32, u32)>("prmt.b32", [](u32 a, u32 b, u32 how) {
      const u64 both = u64(b) << 32 | a;
      u32 r = 0;
      for (int i = 0; i < 4; ++i) {
        const u32 pick = how >> (4 * i) & 15;
        const u32 byte = u32(both >> (8 * (pick & 7))) & 255;
        r |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
      }
      return r;
    });
    const auto right = [](u32 a, u32 b, u32 n) { return u32((u64(b) << 32 | a) >> n); };
    const auto left = [](u32 a, u32 b, u32 n) { return u32((u64(b) << 32 | a) << n >> 32); };
    using Right = decltype(right);
    using Left = decltype(left);
    add<u32(u32, u32, u32)>("shf.r.wrap.b32",
                            [](u32 a, u32 b, u32 n) { return Right{}(a, b, n & 31); });
    add<u32(u32, u32, u32)>("shf.l.wrap.b32",
                            [](u32 a, u32 b, u32 n) { return Left{}(a, b, n & 31); });
    add<u32(u32, u32, u32)>("shf.r.clamp.b32",
                            [](u32 a, u32 b, u32 n) { return Right{}(a, b, n < 32 ? n : 32); });
    add<u32(u32, u32, u32)>("shf.l.clamp.b32",
                            [](u32 a, u32 b, u32 n) { return Left{}(a, b, n < 32 ? n : 32); });
    add<u32(u32, u32, u32, u32)>("lop3.b32", [](u32 a, u32 b, u32 c, u32 table) {
      u32 r = 0;
      for (u32 i = 0; i < 8; ++i)
        if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
      return r;
    });
    products_of_bytes<u32, u32>();
    products_of_bytes<u32, s32>();
    products_of_bytes<s32, u32>();
    products_of_bytes<s32, s32>();
    add<u32(u32)>("bfind.u32", [](u32 a) { return a ? 31 - std::countl_zero(a) : ~0u; });
    add<u32(u64)>("bfind.u64", [](u64 a) { return a ? 63 - std::countl_zero(a) : ~0u; });
  }
  // c and the products of the four bytes of a and b, each with the sign of its type.
  template <class A, class B>
  void products_of_bytes() {
    using Sum = std::conditional_t<std::is_signed_v<A> || std::is_signed_v<B>, s32, u32>;
    add<Sum(A, B, Sum)>("dp4a" + suffix<A>() + suffix<B>(), [](A a, B b, Sum c) {
      for (int at = 24; at >= 0; at -= 8)  // shifts right keep the sign
        c += static_cast<Sum>(static_cast<A>(u32(a) << at) >> 24) *
             static_cast<Sum>(static_cast<B>(u32(b) << at) >> 24);
      return c;
    });
  }
  template <class... T>
  void extract() {
    (add<T(T, u32, u32)>("bfe" + suffix<T>(),
                         [](T a, u32 at, u32 n) {
                           constexpr u32 width = 8 * sizeof(T);
                           at &= 255;
                           n &= 255;
                           if (n == 0) return T(0);
                           if (at >= width) return std::is_signed_v<T> && a < 0 ? T(-1) : T(0);
                           if (n > width - at) n = width - at;
                           return T(T(std::make_unsigned_t<T>(a) << (width - at - n)) >>
                                    (width - n));
                         }),
     ...);
  }

  template <class... T>
  void reals() {
    (real<T>(suffix<T>()), ...);
  }
  template <class T>
  void real(const std::string& t) {
    ordered<T>(t);
    compare<T>("equ", t, [](T a, T b) { return !(a < b || a > b); });
    compare<T>("neu", t, [](T a, T b) { return a != b; });
    compare<T>("ltu", t, [](T a, T b) { return !(a >= b); });
    compare<T>("leu", t, [](T a, T b) { return !(a > b); });
    compare<T>("gtu", t, [](T a, T b) { return !(a <= b); });
    compare<T>("geu", t, [](T a, T b) { return !(a < b); });
    compare<T>("num", t, [](T a, T b) { return a == a && b == b; });
    compare<T>("nan", t, [](T a, T b) { return a != a || b != b; });
    for (const std::string rn : {"", ".rn"}) {
      add<T(T, T)>("add" + rn + t, [](T a, T b) { return a + b; });
      add<T(T, T)>("sub" + rn + t, [](T a, T b) { return a - b; });
      add<T(T, T)>("mul" + rn + t, [](T a, T b) { return a * b; });
    }
    add<T(T, T, T)>("fma.rn" + t, [](T a, T b, T c) { return std::fma(a, b, c); });
    add<T(T, T)>("div.rn" + t, [](T a, T b) { return a / b; });
    add<T(T)>("rcp.rn" + t, [](T a) { return 1 / a; });
    add<T(T)>("sqrt.rn" + t, [](T a) { return std::sqrt(a); });
    add<T(T)>("mov" + t, [](T a) { return a; });
    add<T(T, T, bool)>("selp" + t, [](T a, T b, bool p) { return p ? a : b; });
    add<T(T)>("neg" + t, [](T a) { return -a; });
    add<T(T)>("abs" + t, [](T a) { return std::fabs(a); });
    add<T(T, T)>("copysign" + t, [](T a, T b) { return std::copysign(b, a); });
    // A number is preferred to NaN, and -0 is less than 0.
    add<T(T, T)>("min" + t, [](T a, T b) {
      if (a != a) return b;
      if (a == b) return std::signbit(a) ? a : b;
      return b < a ? b : a;
    });
    add<T(T, T)>("max" + t, [](T a, T b) {
      if (a != a) return b;
      if (a == b) return std::signbit(a) ? b : a;
      return b > a ? b : a;
    });
    add<T(T, T)>("min.NaN" + t, [](T a, T b) { return a != a || b != b ? T(NAN) : b < a ? b : a; });
    add<T(T, T)>("max.NaN" + t, [](T a, T b) { return a != a || b != b ? T(NAN) : b > a ? b : a; });
    add<bool(T)>("testp.finite" + t, [](T a) { return std::isfinite(a); });
    add<bool(T)>("testp.infinite" + t, [](T a) { return std::isinf(a); });
  }

  template <Towards t>
  void towards(const std::string& name) {
    add<f32(f32, f32)>("add" + name, [](f32 a, f32 b) { return fma_towards(a, 1, b, t); });
    add<f32(f32, f32)>("sub" + name, [](f32 a, f32 b) { return fma_towards(a, 1, -b, t); });
    add<f32(f32, f32)>("mul" + name,
                       [](f32 a, f32 b) { return fma_towards(a, b, a * b > 0 ? 0.f : -0.f, t); });
    add<f32(f32, f32, f32)>("fma" + name,
                            [](f32 a, f32 b, f32 c) { return fma_towards(a, b, c, t); });
  }
  // (Each is more accurate here than on a GPU, by up to some units in the last place.)
  void approximations() {
    towards<Towards::Down>(".rm.f32");
    towards<Towards::Up>(".rp.f32");
    towards<Towards::Zero>(".rz.f32");
    add<f32(f32, f32)>("add.sat.f32", [](f32 a, f32 b) { return saturate(a + b); });
    add<f32(f32, f32)>("mul.sat.f32", [](f32 a, f32 b) { return saturate(a * b); });
    add<f32(f32, f32, f32)>("fma.rn.sat.f32",
                            [](f32 a, f32 b, f32 c) { return saturate(std::fma(a, b, c)); });
    add<f32(f32, f32)>("mul.ftz.f32", [](f32 a, f32 b) { return flush(flush(a) * flush(b)); });
    add<f32(f32, f32)>("div.full.f32", [](f32 a, f32 b) { return off(a / b, b, 0x1p-22f); });
    add<f32(f32, f32)>("div.approx.ftz.f32", [](f32 a, f32 b) {
      return std::fabs(b) > 0x1p126f ? a * 0.f : flush(off(flush(a) / flush(b), b, 0x1p-22f));
    });
    add<f32(f32, f32)>("div.approx.f32", [](f32 a, f32 b) {
      return std::fabs(b) > 0x1p126f ? a * 0.f : off(a / b, b, 0x1p-22f);
    });
    add<f32(f32)>("ex2.approx.f32", [](f32 a) { return off(std::exp2(a), a, 0x1p-22f); });
    add<f32(f32)>("ex2.approx.ftz.f32", [](f32 a) {
      return flush(off(std::exp2(flush(a)), a, a == std::floor(a) ? 0.f : 0x1p-22f));
    });  // (powers of 2 are exact, which libraries rely on)
    add<f32(f32)>("lg2.approx.f32", [](f32 a) {
      return off(std::log2(a), a, 0,
                 a > 0.5f && a < 2 ? 0x1p-22f : std::fabs(std::log2(a)) * 0x1p-22f);
    });
    add<f32(f32)>("lg2.approx.ftz.f32", [](f32 a) {
      return flush(off(std::log2(flush(a)), a, 0,
                       a > 0.5f && a < 2 ? 0x1p-22f : std::fabs(std::log2(a)) * 0x1p-22f));
    });
    add<f32(f32)>("rcp.approx.f32", [](f32 a) { return off(1 / a, a, 0x1p-23f); });
    add<f32(f32)>("rcp.approx.ftz.f32",
                  [](f32 a) { return flush(off(1 / flush(a), a, 0x1p-23f)); });
    add<f32(f32)>("rsqrt.approx.f32",
                  [](f32 a) { return off(f32(1 / std::sqrt(f64(a))), a, 0x1p-22f); });
    add<f32(f32)>("rsqrt.approx.ftz.f32",
                  [](f32 a) { return off(f32(1 / std::sqrt(f64(flush(a)))), a, 0x1p-22f); });
    add<f32(f32)>("sqrt.approx.f32", [](f32 a) { return std::sqrt(a); });
    add<f32(f32)>("sqrt.approx.ftz.f32", [](f32 a) { return std::sqrt(flush(a)); });
    add<f32(f32)>("sin.approx.f32", [](f32 a) { return off(std::sin(a), a, 0, 0x1p-20f); });
    add<f32(f32)>("cos.approx.f32", [](f32 a) { return off(std::cos(a), a, 0, 0x1p-20f); });
    add<f32(f32)>("tanh.approx.f32", [](f32 a) { return off(std::tanh(a), a, 0x1p-11f); });
    // These return the upper word.
    const auto upper = [](f64 r) {
      return std::bit_cast<f64>(std::bit_cast<u64>(r) & ~u64{0xffffffff});
    };
    using Upper = decltype(upper);
    add<f64(f64)>("rcp.approx.ftz.f64", [](f64 a) { return Upper{}(1 / a); });
    add<f64(f64)>("rsqrt.approx.ftz.f64", [](f64 a) { return Upper{}(1 / std::sqrt(a)); });
  }

  template <class... T>
  void carries() {
    (carried<T>(suffix<T>()), ...);
  }
  template <class T>
  void carried(const std::string& t) {
    using U = std::make_unsigned_t<T>;
    using W = Wider<U>;
    constexpr int width = 8 * sizeof(T);
    const auto sum = [](U a, U b, U in, bool& out) {
      const W r = W(a) + b + in;
      out = r >> width != 0;
      return U(r);
    };
    using Sum = decltype(sum);
    carry<T, 2>("add", t, [](T a, T b, T in, bool& out) { return T(Sum{}(a, b, in, out)); });
    carry<T, 2>("sub", t, [](T a, T b, T in, bool& out) {
      out = W(U(a)) < W(U(b)) + U(in);
      return T(U(a) - U(b) - U(in));
    });
    carry<T, 3>("mad", ".lo" + t, [](T a, T b, T c, T in, bool& out) {
      return T(Sum{}(U(W(U(a)) * U(b)), c, in, out));
    });
    carry<T, 3>("mad", ".hi" + t, [](T a, T b, T c, T in, bool& out) {
      return T(Sum{}(U(Wider<T>(Wider<T>(a) * b) >> width), c, in, out));
    });
  }
  template <class T, int n, class F>
  void carry(const std::string& name, const std::string& t, F f) {
    const size_t dot = t.rfind('.');
    const std::string part = t.substr(0, dot), type = t.substr(dot);
    ops[name + part + ".cc" + type] = carry_op<T, false, true, n>(f);
    ops[name + "c" + part + ".cc" + type] = carry_op<T, true, true, n>(f);
    ops[name + "c" + part + type] = carry_op<T, true, false, n>(f);
  }

  void predicates() {
    add<bool(bool, bool)>("and.pred", [](bool a, bool b) { return a && b; });
    add<bool(bool, bool)>("or.pred", [](bool a, bool b) { return a || b; });
    add<bool(bool, bool)>("xor.pred", [](bool a, bool b) { return a != b; });
    add<bool(bool)>("not.pred", [](bool a) { return !a; });
    add<bool(bool)>("mov.pred", [](bool a) { return a; });
    const Run active = [](Warp& w, const Code& c, uint32_t mask) {
      each(mask, w.at<u32>(c.at[0]), [=](int) { return mask; });
    };
    ops["activemask.b32"] = {active, {4}};
    const Run nothing = [](Warp&, const Code&, uint32_t) {};
    for (const char* name : {"membar.gl", "membar.cta", "membar.sys", "fence.acq_rel.gpu",
                             "fence.sc.gpu", "fence.acq_rel.sys"})
      ops[name] = {nothing, {}};
    const Run trap = [](Warp& w, const Code&, uint32_t mask) {
      w.fault(__builtin_ctz(mask), "trap");
    };
    ops["trap"] = {trap, {}};
  }
};

}  // namespace

const std::map<std::string, Op, std::less<>>& plain_ops() {
  static const Table table;
  return table.ops;
}

}  // namespace mixtape::ptx
