// Instructions of tensor cores that a warp runs: ldmatrix, mma and wmma.
#include <bit>
#include <cstdlib>
#include <type_traits>

#include "emulator/ptx/numbers.h"
#include "emulator/ptx/text.h"

namespace mixtape::ptx {
namespace {

template <bool transposed, int n>
void load_matrices(Warp& w, const Code& c, uint32_t mask) {  // {n}, [a]
  need_all(w, mask);
  char* row[lanes];
  w.locate(c, c.at[1], 16, n == 4 ? mask : mask & ((1u << 8 * n) - 1), row);
  each_bit(mask, [&](int l) {
    if (l < 8 * n) w.touch(l, row[l], 16, Access::Read);
  });
  const Slot* const to = w.list(c);
  for (int i = 0; i < n; ++i)
    each(mask, w.at<uint32_t>(to[i]), [&](int l) {
      uint32_t word = 0;
      if (!transposed) {
        std::memcpy(&word, row[8 * i + l / 4] + l % 4 * 4, 4);
      } else {
        for (int e = 0; e < 2; ++e) {
          uint16_t half;
          std::memcpy(&half, row[8 * i + l % 4 * 2 + e] + l / 4 * 2, 2);
          word |= uint32_t(half) << (16 * e);
        }
      }
      return word;
    });
}

// sum += a b. Sums are f32, of exact products.
template <int depth, int columns>
void add_products(const float (&a)[16][depth], const float (&b)[depth][columns],
                  float (&sum)[16][columns]) {
  // (Tensor cores add 4 or 8 products at once and truncate, in an undocumented way.)
  static const bool rough = std::getenv("MIXTAPE_PTX_ROUGH") != nullptr;
  for (int r = 0; r < 16; ++r) {
    for (int k = 0; k < depth && !rough; ++k)
      for (int n = 0; n < columns; ++n) sum[r][n] += a[r][k] * b[k][n];
    for (int n = 0; n < columns && rough; ++n)
      for (int k = 0; k < depth; k += depth / 2) {
        double all = double(sum[r][n]);
        for (int i = k; i < k + depth / 2; ++i) all += double(a[r][i]) * b[i][n];
        sum[r][n] = directed(float(all), all, Round::Zero);
      }
  }
}
// Element e of a register of an operand: of two, or one of TF32.
template <class T>
constexpr int in_word = std::is_same_v<T, float> ? 1 : 2;
template <class T>
float number(uint32_t word, int e) {
  if constexpr (in_word<T> == 1)
    return std::bit_cast<float>(word & ~0x1fffu);  // tensor cores ignore the last bits
  else
    return widen(T{uint16_t(word >> (16 * e))});
}

// d = a b + c, 16 x depth by depth x 8.
template <class T>
void multiply(Warp& w, const Code& c, uint32_t mask) {  // {4}, {4}, {2}, {4}
  need_all(w, mask);
  constexpr int depth = 8 * in_word<T>;
  const Slot* const s = w.list(c);
  float a[16][depth], b[depth][8], sum[16][8];
  for (int l = 0; l < lanes; ++l) {
    const int g = l / 4, t = l % 4;
    for (int i = 0; i < 4; ++i)
      for (int e = 0; e < in_word<T>; ++e)
        a[g + i % 2 * 8][(t + i / 2 * 4) * in_word<T> + e] =
            number<T>(w.at<uint32_t>(s[4 + i])[l], e);
    for (int i = 0; i < 2; ++i)
      for (int e = 0; e < in_word<T>; ++e)
        b[(t + i * 4) * in_word<T> + e][g] = number<T>(w.at<uint32_t>(s[8 + i])[l], e);
    for (int i = 0; i < 4; ++i) sum[g + i / 2 * 8][2 * t + i % 2] = w.at<float>(s[10 + i])[l];
  }
  add_products(a, b, sum);
  for (int i = 0; i < 4; ++i)
    each(mask, w.at<float>(s[i]), [&](int l) { return sum[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2]; });
}

// --- wmma: opaque matrices, in an order of no device ---

// The lane, register and part of a register with element e. Each form of an operand has an order of
// its own, so that only those that match can be multiplied.
struct Place {
  int lane, part, half;
};
Place place(int e, int form, int in_word) {
  const int p = (e * (77 + 2 * form) + 41 * form) & (in_word == 2 || form == 4 ? 255 : 127);
  return {p % lanes, p / lanes / in_word, p / lanes % in_word};
}
enum Form { ByRows, ByColumns, Sums = 4 };  // of an operand a; b has two more
constexpr Form form_of(bool is_b, bool by_rows) {
  return Form((is_b ? 2 : 0) + (by_rows ? ByRows : ByColumns));
}

// The host addresses of `lines` lines of `bytes`, as many elements apart as the register at `ld`
// says, accessed by lanes in turn.
template <class T, int lines>
void locate_lines(Warp& w, const Code& c, Slot address, Slot ld, int bytes, Access access,
                  char* (&line)[lines]) {
  const char* const at = w.at<char>(address);
  for (int l = 1; l < lanes; ++l)
    if (std::memcmp(at, at + l * c.width[1], c.width[1]) != 0 ||
        w.at<int32_t>(ld)[l] != w.at<int32_t>(ld)[0])
      w.fault(l, "names another matrix than the lanes before it");
  char* to[lanes];
  w.locate(c, address, 32, 1, to);  // the alignment of the matrix
  const int64_t apart = int64_t(w.at<int32_t>(ld)[0]) * int64_t(sizeof(T));
  Code there = c;
  for (int i = 0; i < lines; ++i)
    for (int b = 0; b < bytes; b += 16) {
      const int lane = (i + b / 16 * lines) % lanes;
      there.offset = c.offset + i * apart + b;
      w.locate(there, address, 16, 1u << lane, to);
      w.touch(lane, to[lane], 16, access);
      if (b == 0) line[i] = to[lane];
    }
}
template <class T, bool is_b, bool by_rows>
void load_wmma(Warp& w, const Code& c, uint32_t mask) {  // {n}, [a], ld
  need_all(w, mask);
  constexpr int depth = 8 * in_word<T>, along_k = by_rows != is_b;
  constexpr int lines = along_k ? 16 : depth, length = along_k ? depth : 16;
  char* line[lines];
  locate_lines<T>(w, c, c.at[1], c.at[2], length * int(sizeof(T)), Access::Read, line);
  const Slot* const to = w.list(c);
  for (int i = 0; i < lines; ++i)
    for (int j = 0; j < length; ++j) {
      const int e = by_rows ? i * length + j : j * lines + i;
      const Place p = place(e, form_of(is_b, by_rows), in_word<T>);
      std::memcpy(w.at<char>(to[p.part]) + p.lane * 4 + p.half * 2, line[i] + j * int(sizeof(T)),
                  sizeof(T));
    }
  // (f16 has twice the registers that it needs.)
  for (int i = 4; i < (std::is_same_v<T, F16> ? 8 : 4); ++i)
    each(mask, w.at<uint32_t>(to[i]), [](int) { return ~0u; });
}
template <class T, bool a_by_rows, bool b_by_rows>
void multiply_wmma(Warp& w, const Code& c, uint32_t mask) {  // {8}, {n}, {n}, {8}
  need_all(w, mask);
  constexpr int depth = 8 * in_word<T>, n = std::is_same_v<T, F16> ? 8 : 4;
  const Slot* const s = w.list(c);
  const auto element = [&](int e, bool is_b, bool by_rows) {
    const Place p = place(e, form_of(is_b, by_rows), in_word<T>);
    return number<T>(w.at<uint32_t>(s[8 + (is_b ? n : 0) + p.part])[p.lane], p.half);
  };
  float a[16][depth], b[depth][16], sum[16][16];
  for (int e = 0; e < 16 * depth; ++e) {
    a[e / depth][e % depth] = element(e, false, a_by_rows);
    b[e / 16][e % 16] = element(e, true, b_by_rows);
  }
  for (int e = 0; e < 256; ++e) {
    const Place p = place(e, Sums, 1);
    sum[e / 16][e % 16] = w.at<float>(s[8 + 2 * n + p.part])[p.lane];
  }
  add_products(a, b, sum);
  for (int e = 0; e < 256; ++e) {
    const Place p = place(e, Sums, 1);
    w.at<float>(s[p.part])[p.lane] = sum[e / 16][e % 16];
  }
}
void store_wmma(Warp& w, const Code& c, uint32_t mask) {  // [a], {8}, ld
  need_all(w, mask);
  char* line[16];
  locate_lines<float>(w, c, c.at[1], c.at[2], 64, Access::Write, line);
  const Slot* const from = w.list(c);
  for (int e = 0; e < 256; ++e) {
    const Place p = place(e, Sums, 1);
    std::memcpy(line[e / 16] + e % 16 * 4, &w.at<float>(from[p.part])[p.lane], 4);
  }
}
// wmma.load.a.sync.aligned.row.m16n16k16.shared.bf16, wmma.mma.sync.aligned.row.col.m16n16k16.f32.
// bf16.bf16.f32 (of f16 ...k16.f32.f32), wmma.store.d.sync.aligned.row.m16n16k16.shared.f32
template <class T>
Run wmma_of(std::span<const std::string_view> parts) {
  if (parts[1] == "mma") {
    const bool rows_a = parts[4] == "row", rows_b = parts[5] == "row";
    return rows_a   ? rows_b ? multiply_wmma<T, true, true> : multiply_wmma<T, true, false>
             : rows_b ? multiply_wmma<T, false, true>
                    : multiply_wmma<T, false, false>;
  }
  const bool rows = parts[5] == "row";
  return parts[2] == "a" ? rows ? load_wmma<T, false, true> : load_wmma<T, false, false>
         : rows ? load_wmma<T, true, true>
                         : load_wmma<T, true, false>;
}
Run wmma_op(std::span<const std::string_view> parts) {
  if (parts.size() < 9) return nullptr;
  if (parts[1] == "store") return parts[5] == "row" && parts[8] == "f32" ? store_wmma : nullptr;
  const bool is_load = parts[1] == "load";
  if (!is_load && (parts[1] != "mma" || parts[7] != "f32" || parts.back() != "f32")) return nullptr;
  const std::string_view shape = parts[6], type = parts[is_load || parts.size() > 9 ? 8 : 7];
  if (shape == "m16n16k16" && type == (is_load ? "f16" : "f32")) return wmma_of<F16>(parts);
  if (shape == "m16n16k16" && type == "bf16") return wmma_of<BF16>(parts);
  if (shape == "m16n16k8" && type == "tf32") return wmma_of<float>(parts);
  return nullptr;
}

}  // namespace

Run tensor_core_op(std::string_view name) {
  static const std::map<std::string_view, Run> ops = {
      {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", load_matrices<false, 4>},
      {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", load_matrices<true, 4>},
      {"ldmatrix.sync.aligned.m8n8.x2.shared.b16", load_matrices<false, 2>},
      {"ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", load_matrices<true, 2>},
      {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", multiply<F16>},
      {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", multiply<BF16>},
      {"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", multiply<float>},
  };
  const auto found = ops.find(name);
  if (found != ops.end()) return found->second;
  const auto parts = parts_of(name);
  return parts[0] == "wmma" ? wmma_op(parts) : nullptr;
}

}  // namespace mixtape::ptx
