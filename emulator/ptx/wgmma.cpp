// Products by groups of four warps: wgmma. Each warp has 16 rows of the sums; all are made when the
// first of the warps waits for them, and all have begun the product.
#include <algorithm>
#include <bit>
#include <utility>

#include "emulator/ptx/warp.h"

namespace mixtape::ptx {

namespace {

constexpr int rows = 16, deep = 32;  // of a warp; bytes along k

// --- numbers ---

enum class Type : uint8_t { F16, BF16, TF32, E4M3, E5M2, None };
Type type_of(std::string_view name) {
  if (name == "f16") return Type::F16;
  if (name == "bf16") return Type::BF16;
  if (name == "tf32") return Type::TF32;
  if (name == "e4m3") return Type::E4M3;
  if (name == "e5m2") return Type::E5M2;
  return Type::None;
}
int bytes_of(Type t) { return t == Type::TF32 ? 4 : t >= Type::E4M3 ? 1 : 2; }

float from_e5m2(uint8_t bits) {  // the upper half of f16
  return float(std::bit_cast<_Float16>(uint16_t(bits << 8)));
}
float from_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  if ((bits & 127) == 127) return NAN;
  const float size = exponent == 0 ? std::ldexp(float(fraction), -9)
                                   : std::ldexp(float(8 + fraction), exponent - 10);
  return bits & 128 ? -size : size;
}
// `count` neighbours.
void widen(Type t, const char* from, int count, float* to) {
  for (int i = 0; i < count; ++i) {
    if (t == Type::TF32) {
      uint32_t u = 0;
      std::memcpy(&u, from + 4 * i, 4);
      to[i] = std::bit_cast<float>(u & ~0x1fffu);  // tensor cores ignore the last bits
    } else if (bytes_of(t) == 2) {
      uint16_t u = 0;
      std::memcpy(&u, from + 2 * i, 2);
      to[i] = t == Type::F16 ? float(std::bit_cast<_Float16>(u))
                             : std::bit_cast<float>(uint32_t(u) << 16);
    } else {
      to[i] = t == Type::E4M3 ? from_e4m3(uint8_t(from[i])) : from_e5m2(uint8_t(from[i]));
    }
  }
}

// --- operands in shared memory ---

// A matrix in shared memory by its descriptor: chunks of 16 bytes in rows of `width` chunks, eight
// rows after the other. Along k, a row has a line's elements; else, a step's of 8 lines and more.
struct Matrix {
  uint32_t start, lead, stride, width;
  bool along_k;

  Matrix(uint64_t d, bool k)
      : start(uint32_t(d & 0x3fff) << 4),
        lead(uint32_t(d >> 16 & 0x3fff) << 4),
        stride(uint32_t(d >> 32 & 0x3fff) << 4),
        width(d >> 62 == 0 ? 1 : 16 >> (d >> 62)),
        along_k(k) {}
  // Chunk `far` of row `row`: along k, the row is a line; else, a step of k.
  uint32_t place(uint32_t row, uint32_t far) const {
    const uint32_t in_eight = row % 8 * width * 16;
    uint32_t at = start + in_eight;
    if (width > 1)
      at += far % width * 16 + far / width * lead + row / 8 * stride;
    else
      at += along_k ? row / 8 * stride + far * lead : row / 8 * lead + far * stride;
    return at ^ ((at >> 7 & (width - 1)) << 4);
  }
  // Calls f with the places of the chunks of these lines.
  template <class F>
  void each_chunk(int first, int count, F f) const {
    if (along_k) {
      for (int l = first; l < first + count; ++l)
        for (uint32_t c = 0; c < deep / 16; ++c) f(place(uint32_t(l), c));
    } else {
      for (uint32_t k = 0; k < 16; ++k)
        for (int l = first; l < first + count; l += 8) f(place(k, uint32_t(l / 8)));
    }
  }
};

void check(Warp& w, uint64_t descriptor) {
  const Matrix m(descriptor, true);
  if (descriptor >> 49 & 7) w.fault(0, "a base offset in a descriptor is not known here");
  if (m.width > 1 && (m.start >> 7 & (m.width - 1)))
    w.fault(0, "the descriptor begins at " + std::to_string(m.start) +
                   ", which is not where the swizzle begins");
}
// Appends the bytes of these lines, which a product reads that begins now (its number), or has
// begun.
constexpr size_t begun = ~size_t{0};
void gather(Warp& w, const Matrix& m, int first, int count, size_t product, std::vector<char>& to) {
  Block& block = *w.block;
  size_t at = to.size();
  to.resize(at + size_t(count) * deep);
  uint32_t low = ~0u, high = 0;
  m.each_chunk(first, count, [&](uint32_t place) {
    if (place + 16 > block.shared_bytes)
      w.fault(0, "shared memory of " + std::to_string(block.shared_bytes) + " bytes, at " +
                     std::to_string(place) + ": 16");
    low = std::min(low, place), high = std::max(high, place + 16);
    if (watch_races && product != begun) {
      w.touch(0, block.shared + place, 16, Access::AsyncRead);
      mark_product(block, w.actor() / 4, product, block.shared + place, 16);
    }
    std::memcpy(to.data() + at, block.shared + place, 16);
    at += 16;
  });
  if (!block.writes(low, high)) return;
  m.each_chunk(first, count, [&](uint32_t place) {
    if (block.writes(place, place + 16)) w.fault(0, "shared memory that a box is still written to");
  });
}

// --- products ---

struct Shape {
  int columns;
  Type a, b;
  bool a_in_registers;

  int depth() const { return deep / bytes_of(a); }
};
Shape shape_of(const Code& c) {
  return {int(c.offset & 0xffff), Type(c.width[0]), Type(c.width[1]), (c.offset >> 16) != 0};
}
// The slots of the numbers behind the operands.
struct Flags {
  int scale_a, scale_b;
  bool transposed_a, transposed_b;
};
Flags flags_of(Warp& w, const Code& c, const Shape& s) {
  const Slot* n = w.list(c) + s.columns / 2 + (s.a_in_registers ? 4 : 1) + 2;
  Flags f{n[0], n[1], false, false};
  if (bytes_of(s.a) == 2) {
    if (!s.a_in_registers) f.transposed_a = *(n + 2) != 0;
    f.transposed_b = n[s.a_in_registers ? 2 : 3] != 0;
  }
  return f;
}
// The operands of the rows of a warp, as `w` sees them.
void gather(Warp& w, int warp, const Product& p, const Shape& s, const Flags& f, size_t number,
            std::vector<char>& to) {
  if (!s.a_in_registers)
    gather(w, Matrix(p.a, !f.transposed_a), rows * (warp % 4), rows, number, to);
  gather(w, Matrix(p.b, !f.transposed_b), 0, s.columns, number, to);
}

// Lines of an operand, or if `across`, its steps of k.
void unpack(Type type, const char* from, bool along_k, int lines, bool across, float* to) {
  const int depth = deep / bytes_of(type);
  float some[deep];
  if (along_k) {
    for (int l = 0; l < lines; ++l, from += deep) {
      widen(type, from, depth, some);
      for (int k = 0; k < depth; ++k) to[across ? k * lines + l : l * depth + k] = some[k];
    }
  } else {
    for (int k = 0; k < depth; ++k)
      for (int l = 0; l < lines; l += 8, from += 16) {
        widen(type, from, 8, some);
        for (int i = 0; i < 8; ++i) to[across ? k * lines + l + i : (l + i) * depth + k] = some[i];
      }
  }
}
float truncated(double x) {
  const float near = float(x);
  return std::fabs(near) > std::fabs(x) ? std::nextafter(near, 0.f) : near;
}
// Makes the product of the warp `of`, in the name of `w`. (Tensor cores truncate sums, in a way
// that is not documented; MIXTAPE_PTX_ROUGH does so once for each product.)
void multiply(Warp& w, Warp& of, const Product& p) {
  Sums& sums = *std::ranges::find(of.sums, p.sums, &Sums::id);
  const Shape s = shape_of(*p.code);
  const Flags f = flags_of(w, *p.code, s);
  const int depth = s.depth(), n = s.columns;
  std::vector<char> now(p.operands.begin(),
                        p.operands.begin() + (s.a_in_registers ? rows * deep : 0));
  gather(w, of.number(), p, s, f, begun, now);
  if (now != p.operands) w.fault(0, "shared memory changed while wgmma multiplied it");
  float a[rows * deep];
  std::vector<float> b(size_t(n * depth));
  unpack(s.a, now.data(), !f.transposed_a, rows, false, a);
  unpack(s.b, now.data() + rows * deep, !f.transposed_b, n, true, b.data());
  if (!p.add) std::ranges::fill(sums.values, 0.f);
  const float sign = float(f.scale_a * f.scale_b);
  static const bool rough = std::getenv("MIXTAPE_PTX_ROUGH") != nullptr;
  for (int r = 0; r < rows; ++r) {
    float* const sum = sums.values.data() + r * n;
    for (int i = 0; i < n && rough; ++i) {
      double all = double(sum[i]);
      for (int k = 0; k < depth; ++k) all += double(sign * a[r * depth + k]) * b[size_t(k * n + i)];
      sum[i] = truncated(all);
    }
    for (int k = 0; k < depth && !rough; ++k) {
      const float x = sign * a[r * depth + k];
      const float* const y = b.data() + k * n;
      for (int i = 0; i < n; ++i) sum[i] += x * y[i];
    }
  }
}

// --- sums in registers ---

// The row and column of a lane's i-th sum.
int place_of(int lane, int i, int columns) {
  return (lane / 4 + i / 2 % 2 * 8) * columns + i / 4 * 8 + lane % 4 * 2 + i % 2;
}
// The bits of a register while its sum is under way.
uint32_t tag(uint32_t id, int i, int lane) {
  return 0x7fc00000u | (id % 1023 + 1) << 12 | uint32_t(i) << 5 | uint32_t(lane);
}
// The sums of these registers, begun by an earlier product or now.
Sums& sums_of(Warp& w, const Slot* slots, int columns) {
  for (Sums& s : w.sums)
    if (s.columns == columns && w.at<uint32_t>(slots[0])[0] == tag(s.id, 0, 0)) {
      for (int i = 0; i < columns / 2; ++i)
        for (int l = 0; l < lanes; ++l)
          if (w.at<uint32_t>(slots[i])[l] != tag(s.id, i, l))
            w.fault(l, "sums of wgmma were written while they were under way");
      s.slots.assign(slots, slots + columns / 2);
      return s;
    }
  if (!w.sums_fenced) w.fault(0, "no wgmma.fence since its sums were plain registers");
  static uint32_t ids = 0;
  Sums& s = w.sums.emplace_back();
  s.id = ++ids;
  s.columns = columns;
  s.slots.assign(slots, slots + columns / 2);
  s.values.resize(size_t(rows * columns));
  for (int i = 0; i < columns / 2; ++i)
    for (int l = 0; l < lanes; ++l) {
      s.values[size_t(place_of(l, i, columns))] = w.at<float>(slots[i])[l];
      w.at<uint32_t>(slots[i])[l] = tag(s.id, i, l);
    }
  return s;
}
// Puts sums where their tags are, which may have been moved.
void put(Warp& w, const Sums& s) {
  bool moved = false;
  for (int i = 0; i < s.columns / 2; ++i)
    for (int l = 0; l < lanes; ++l) {
      float& there = w.at<float>(s.slots[size_t(i)])[l];
      if (std::bit_cast<uint32_t>(there) == tag(s.id, i, l))
        there = s.values[size_t(place_of(l, i, s.columns))];
      else
        moved = true;
    }
  if (!moved) return;
  for (uint32_t& word : w.registers())
    if ((word & ~0xfffu) == (tag(s.id, 0, 0) & ~0xfffu) && int(word >> 5 & 127) < s.columns / 2)
      word = std::bit_cast<uint32_t>(
          s.values[size_t(place_of(int(word & 31), int(word >> 5 & 127), s.columns))]);
}

// --- instructions ---

void need_group(Warp& w, uint32_t mask) {
  const auto [x, y, z] = w.block->grid->threads;
  need_all(w, mask);
  if (uint32_t(w.number() / 4 + 1) * 128 > x * y * z) w.fault(0, "needs four warps");
}
// {sums}, a, b, add, signs, transposed
void begin(Warp& w, const Code& c, uint32_t mask) {
  need_group(w, mask);
  const Shape shape = shape_of(c);
  const Flags f = flags_of(w, c, shape);
  const Slot* const slots = w.list(c);
  const Slot* const a = slots + shape.columns / 2;
  const Slot* const b = a + (shape.a_in_registers ? 4 : 1);
  Product p;
  p.code = &c;
  p.group = w.product_group;
  p.b = w.at<uint64_t>(b[0])[0];
  p.a = shape.a_in_registers ? 0 : w.at<uint64_t>(a[0])[0];
  const uint32_t add = w.predicate(b[1]);
  if (add != 0 && add != ~0u) w.fault(0, "its lanes differ in whether to add");
  p.add = add != 0;
  for (int l = 0; l < lanes; ++l)
    if (w.at<uint64_t>(b[0])[l] != p.b || (!shape.a_in_registers && w.at<uint64_t>(a[0])[l] != p.a))
      w.fault(l, "its lanes differ in their descriptors");
  check(w, p.b);
  if (shape.a_in_registers) {
    p.operands.resize(rows * deep);
    for (int l = 0; l < lanes; ++l)
      for (int i = 0; i < 4; ++i)
        std::memcpy(&p.operands[size_t((l / 4 + i % 2 * 8) * deep + (l % 4 + i / 2 * 4) * 4)],
                    &w.at<uint32_t>(a[i])[l], 4);
  } else {
    check(w, p.a);
  }
  // All four warps must multiply the same.
  auto& common = w.block->products[size_t(w.number() / 4)];
  const size_t mine = p.number = w.products_begun++;
  ++w.block->moves;
  const uint64_t what = (p.a * 0x9e3779b97f4a7c15 + p.b) * 0x9e3779b97f4a7c15 + c.list;
  if (mine == common.size()) common.push_back(what);
  if (common[mine] != what) w.fault(0, "the four warps of a group multiply different matrices");
  gather(w, w.number(), p, shape, f, p.number, p.operands);
  Sums& sums = sums_of(w, slots, shape.columns);
  ++sums.steps;
  p.sums = sums.id;
  w.products.push_back(std::move(p));
}
void fence(Warp& w, const Code&, uint32_t mask) {
  need_group(w, mask);
  w.sums_fenced = true;
}
void commit(Warp& w, const Code&, uint32_t mask) {
  need_group(w, mask);
  ++w.product_group;
}
// Makes a product of all four warps; false if not all have begun it.
bool make(Warp& w, const Product& p) {
  const auto group = std::span(w.block->warps).subspan(size_t(w.number() / 4 * 4), 4);
  const size_t number = p.number;
  if (std::ranges::any_of(group, [&](Warp* v) { return v->products_begun <= number; }))
    return false;
  for (Warp* const v : group) {
    Product& part = *std::ranges::find(v->products, number, &Product::number);
    multiply(w, *v, part);
    part.is_made = true;
  }
  return true;
}
void wait(Warp& w, const Code& c, uint32_t mask) {  // until at most n groups are under way
  need_group(w, mask);
  const int last = w.product_group - w.list(c)[0];
  while (!w.products.empty() && w.products.front().group < last) {
    Product& p = w.products.front();
    if (!std::exchange(p.is_awaited, true))  // first, others may do what they should not do yet
      return ++w.block->moves, w.pause(true);
    if (!p.is_made && !make(w, p)) {
      w.wait_for(0, ~0u, 0);
      return w.pause(true);
    }
    if (watch_races) w.clock().seen[size_t(Clock::groups + w.actor() / 4)] = uint32_t(p.number) + 1;
    const auto s = std::ranges::find(w.sums, p.sums, &Sums::id);
    if (--s->steps == 0) {
      put(w, *s);
      w.sums_fenced = false;
      w.sums.erase(s);
    }
    w.products.pop_front();
  }
}

}  // namespace

Form product_form(std::string_view name, size_t operands) {
  if (name == "wgmma.fence.sync.aligned") return {fence, "", Flow::Together};
  if (name == "wgmma.commit_group.sync.aligned") return {commit, "", Flow::Together};
  if (name == "wgmma.wait_group.sync.aligned") return {wait, "i", Flow::Together};
  const std::string_view start = "wgmma.mma_async.sync.aligned.m64n";
  if (!name.starts_with(start)) return {};
  name.remove_prefix(start.size());  // 256k16.f32.bf16.bf16
  int n = 0;
  for (; !name.empty() && name[0] >= '0' && name[0] <= '9'; name.remove_prefix(1))
    n = 10 * n + name[0] - '0';
  const size_t dot = name.find(".f32.");
  if (n == 0 || n % 8 != 0 || n > 256 || dot == name.npos) return {};
  const std::string_view types = name.substr(dot + 5);
  const size_t middle = types.find('.');
  if (middle == types.npos) return {};
  const Type a = type_of(types.substr(0, middle)), b = type_of(types.substr(middle + 1));
  if (a == Type::None || b == Type::None || bytes_of(a) != bytes_of(b)) return {};
  if (name.substr(0, dot) != "k" + std::to_string(deep / bytes_of(a))) return {};
  // Sums, a, b, add, two signs; for two bytes, whether a (if in shared memory) and b are
  // transposed.
  const std::string_view all = "DAlqiiii";
  Form form{begin, all.substr(0, bytes_of(a) == 2 ? std::clamp<size_t>(operands, 7, 8) : 6),
            Flow::Together, n};
  form.types = {uint8_t(a), uint8_t(b)};
  return form;
}

}  // namespace mixtape::ptx
