// Barriers in shared memory and of clusters, fences, and other ops without data.
#include <bit>

#include "emulator/ptx/warp.h"

namespace mixtape::ptx {
namespace {

// --- mbarriers ---

Barrier& barrier_at(Warp& w, const Warp::Place& place, int lane, Access access) {
  const auto [block, at] = place;
  Barrier* const b = block.barrier(at);
  if (!b) w.fault(lane, "there is no mbarrier at " + hex(at));
  uint64_t now = 0;
  std::memcpy(&now, block.shared + at, 8);
  if (now != Barrier::mark) w.fault(lane, "the mbarrier at " + hex(at) + " was overwritten");
  if (!w.knows(b->maker, b->made))
    w.fault(lane, "the mbarrier at " + hex(at) + " may be new: no barrier since its mbarrier.init");
  w.touch(lane, block.shared + at, 8, access);
  return *b;
}
Barrier& barrier_at(Warp& w, const Slot* address, int lane, Access access = Access::Atomic) {
  return barrier_at(w, {*w.block, w.shared_address(address, 8, 8, lane)}, lane, access);
}
void init(Warp& w, const Code& c, uint32_t mask) {  // [barrier], arrivals
  const Slot* const s = w.list(c);
  each_bit(mask, [&](int l) {
    Block& block = *w.block;
    const uint32_t at = w.shared_address(s, 8, 8, l), needed = w.at<uint32_t>(s[3])[l];
    if (needed == 0 || needed >= 1u << 20)
      w.fault(l, "an mbarrier of " + std::to_string(needed) + " arrivals");
    if (block.barrier(at)) w.fault(l, "there is an mbarrier at " + hex(at) + " already");
    if (block.cluster->barriers >= Clock::barriers) w.fault(l, "too many mbarriers");
    w.touch(l, block.shared + at, 8, Access::Write);
    std::memcpy(block.shared + at, &Barrier::mark, 8);
    Barrier& b = block.barriers.emplace_back();
    b.at = at;
    b.number = block.cluster->barriers++;
    b.needed = b.missing = int32_t(needed);
    b.maker = w.actor();
    if (watch_races) b.made = w.clock().seen[size_t(b.maker)];
    ++block.moves;
  });
}
void invalidate(Warp& w, const Code& c, uint32_t mask) {  // [barrier]
  each_bit(mask, [&](int l) {
    Barrier& b = barrier_at(w, w.list(c), l, Access::Write);
    if (b.bytes != 0) w.fault(l, "bytes are on their way to the mbarrier");
    b.at = ~0u;
  });
}
void expect(Warp& w, Barrier& b, int lane, uint32_t bytes) {
  if (bytes >= 1u << 20 || b.bytes + int64_t(bytes) >= 1 << 20)
    w.fault(lane, "an mbarrier cannot expect " + std::to_string(b.bytes + bytes) + " bytes");
  b.bytes += bytes;
}
void arrive_once(Warp& w, Block& block, Barrier& b, int lane, uint32_t count) {
  if (int64_t(count) > b.missing)
    w.fault(lane, "arrives at the mbarrier at " + hex(b.at) + ", whose phase " +
                      std::to_string(b.phase) + " has all of its " + std::to_string(b.needed) +
                      " arrivals");
  if (watch_races && &block != w.block) block.sent[w.actor()] = w.clock().seen[size_t(w.actor())];
  w.release(b.arrived);
  block.arrive(b, int(count));
}
template <bool expects, bool counts>
void arrive(Warp& w, const Code& c, uint32_t mask) {  // state, [barrier], bytes or count
  const Slot* const s = w.list(c);
  each_bit(mask, [&](int l) {
    const Warp::Place there = w.cluster_address(s + 1, 8, 8, l);
    Barrier& b = barrier_at(w, there, l, Access::Atomic);
    w.at<uint64_t>(s[0])[l] = b.phase;
    if (expects) expect(w, b, l, w.at<uint32_t>(s[4])[l]);
    arrive_once(w, there.block, b, l, counts ? w.at<uint32_t>(s[4])[l] : 1);
  });
  w.pause();  // so that others meet what was released too early
}
void expect_only(Warp& w, const Code& c, uint32_t mask) {  // [barrier], bytes
  const Slot* const s = w.list(c);
  each_bit(mask, [&](int l) { expect(w, barrier_at(w, s, l), l, w.at<uint32_t>(s[3])[l]); });
}
// done, [barrier], parity or state. Is the phase over?
template <bool by_parity>
void wait(Warp& w, const Code& c, uint32_t mask) {
  const Slot* const s = w.list(c);
  uint32_t over = 0;
  each_bit(mask, [&](int l) {
    Barrier& b = barrier_at(w, s + 1, l);
    const uint64_t phase = by_parity ? w.at<uint32_t>(s[4])[l] : w.at<uint64_t>(s[4])[l];
    if (by_parity && phase > 1) w.fault(l, "a parity of " + std::to_string(phase));
    if (by_parity ? (b.phase & 1) != phase : b.phase != phase) {
      over |= 1u << l;
      w.acquire(b.over);
    } else {
      w.wait_for(l, b.at, b.phase);
    }
  });
  set_bits(w.predicate(s[0]), mask, over);
  if (over != mask) w.pause();
}

// --- clusters ---

void map_address(Warp& w, const Code& c, uint32_t mask) {  // there, here, rank
  const Slot* const s = w.list(c);
  each_bit(mask, [&](int l) {
    const uint32_t here = w.at<uint32_t>(s[1])[l], rank = w.at<uint32_t>(s[2])[l];
    if (here >> rank_bits != 0) w.fault(l, hex(here) + " is not in this block's shared memory");
    if (rank >= w.block->grid->cluster)
      w.fault(l, "block " + std::to_string(rank) + " of a cluster of " +
                     std::to_string(w.block->grid->cluster));
    w.at<uint32_t>(s[0])[l] = (rank + 1) << rank_bits | here;
  });
}
void arrive_at_cluster(Warp& w, const Code&, uint32_t mask) {
  Cluster& cluster = *w.block->cluster;
  if (w.at_cluster & mask)
    w.fault(__builtin_ctz(w.at_cluster & mask), "arrives again, and did not wait");
  w.at_cluster |= mask;
  w.cluster_phase = cluster.phase;
  w.release(cluster.arrived);
  cluster.here += uint32_t(std::popcount(mask));
  ++w.block->moves;
  cluster.settle();
}
void wait_at_cluster(Warp& w, const Code&, uint32_t mask) {
  const Cluster& cluster = *w.block->cluster;
  if (mask & ~w.at_cluster)
    w.fault(__builtin_ctz(mask & ~w.at_cluster), "waits, and did not arrive");
  if (w.cluster_phase == cluster.phase) {
    w.wait_for(__builtin_ctz(mask), ~0u, 0);
    return w.pause(true);
  }
  w.at_cluster &= ~mask;
  w.acquire(cluster.over);
}

// --- fences ---

void fence_all(Warp& w, const Code&, uint32_t) {
  w.fence();
  for (Barrier& b : w.block->barriers) b.fenced = true;
}
void fence_new_barriers(Warp& w, const Code&, uint32_t) {
  for (Barrier& b : w.block->barriers) b.fenced = true;
}
void nothing(Warp&, const Code&, uint32_t) {}

// --- registers, lanes ---

template <bool raise>
void set_registers(Warp& w, const Code& c, uint32_t mask) {  // n
  need_all(w, mask);
  const int n = w.list(c)[0], at_launch = w.block->kernel->thread_registers;
  auto& all = w.block->registers;
  int& mine = all[size_t(w.number())];
  if (at_launch == 0) w.fault(0, "the kernel has no __launch_bounds__");
  if (mine == 0) mine = at_launch;
  if (raise ? n < mine : n > mine)
    w.fault(0, std::to_string(n) + " registers, and " + std::to_string(mine) + " before");
  int others = 0;  // of the warps, in what all had at the launch
  for (const int r : all) others += (r == 0 ? at_launch : r);
  if (others - mine + n > at_launch * int(all.size())) {
    w.wait_for(0, ~0u, 0);
    return w.pause(true);
  }
  if (n != mine) ++w.block->moves;
  mine = n;
}
void elect(Warp& w, const Code& c, uint32_t mask) {  // lane|here
  const Slot* const s = w.list(c);
  const auto first = uint32_t(__builtin_ctz(mask));
  each(mask, w.at<uint32_t>(s[0]), [=](int) { return first; });
  set_bits(w.predicate(s[1]), mask, 1u << first);
}

// --- stmatrix, pairs of halves ---

template <bool transposed, int n>
void store_matrices(Warp& w, const Code& c, uint32_t mask) {  // [row], {n}
  need_all(w, mask);
  const Slot* const s = w.list(c);
  for (int i = 0; i < n; ++i) {
    const uint32_t* const part = w.at<uint32_t>(s[3 + i]);
    for (int r = 0; r < 8; ++r) {
      const int lane = 8 * i + r;
      uint16_t row[8];
      for (int e = 0; e < 8; ++e)
        row[e] = transposed ? uint16_t(part[4 * e + r / 2] >> (16 * (r % 2)))
                            : uint16_t(part[4 * r + e / 2] >> (16 * (e % 2)));
      char* const to = w.block->shared + w.shared_address(s, 16, 16, lane);
      w.touch(lane, to, 16, Access::Write);
      std::memcpy(to, row, 16);
    }
  }
}

uint16_t to_f16_bits(float x) {
  return x != x ? uint16_t(0x7fff) : std::bit_cast<uint16_t>(_Float16(x));
}
template <uint16_t round(float)>
void convert_pair(Warp& w, const Code& c, uint32_t mask) {  // both, upper, lower
  const Slot* const s = w.list(c);
  const float *const upper = w.at<float>(s[1]), *const lower = w.at<float>(s[2]);
  each(mask, w.at<uint32_t>(s[0]),
       [=](int l) { return uint32_t(round(upper[l])) << 16 | round(lower[l]); });
}

// A name without the scope and strength of its ordering, which are all the same here.
std::string unordered(std::string_view name) {
  std::string n(name);
  const size_t kind = n.starts_with("barrier.cluster") ? n.find('.') + 1 : 0;
  for (const std::string_view order : {".release", ".acquire", ".relaxed", ".cta", ".cluster"})
    if (const size_t at = n.find(order, kind); at != n.npos) n.erase(at, order.size());
  return n;
}

}  // namespace

Form barrier_form(std::string_view name, size_t operands) {
  static const std::map<std::string, Form, std::less<>> forms = {
      {"mbarrier.init.shared.b64", {init, "ar"}},
      {"mbarrier.inval.shared.b64", {invalidate, "a"}},
      {"mbarrier.arrive.shared.b64", {arrive<false, false>, "Wa", Flow::Pause}},
      {"mbarrier.arrive.expect_tx.shared.b64", {arrive<true, false>, "War", Flow::Pause}},
      {"mbarrier.expect_tx.shared.b64", {expect_only, "ar"}},
      {"mbarrier.try_wait.parity.shared.b64", {wait<true>, "par", Flow::Pause}},
      {"mbarrier.test_wait.parity.shared.b64", {wait<true>, "par", Flow::Pause}},
      {"mbarrier.try_wait.shared.b64", {wait<false>, "pal", Flow::Pause}},
      {"mbarrier.test_wait.shared.b64", {wait<false>, "pal", Flow::Pause}},
      {"mapa.shared.u32", {map_address, "wrr"}},
      {"barrier.cluster.arrive", {arrive_at_cluster, "", Flow::Pause}},
      {"barrier.cluster.arrive.aligned", {arrive_at_cluster, "", Flow::Together}},
      {"barrier.cluster.wait", {wait_at_cluster, "", Flow::Pause}},
      {"barrier.cluster.wait.aligned", {wait_at_cluster, "", Flow::Together}},
      {"fence.mbarrier_init", {fence_new_barriers, ""}},
      {"fence.proxy.async", {fence_all, ""}},
      {"fence.proxy.async.shared", {fence_all, ""}},
      {"fence.proxy.async.global", {fence_all, ""}},
      {"fence.sc", {nothing, ""}},
      {"fence.acq_rel", {nothing, ""}},
      {"griddepcontrol.wait", {nothing, ""}},
      {"griddepcontrol.launch_dependents", {nothing, ""}},
      {"setmaxnreg.inc.sync.aligned.u32", {set_registers<true>, "i", Flow::Together}},
      {"setmaxnreg.dec.sync.aligned.u32", {set_registers<false>, "i", Flow::Together}},
      {"cvt.rn.f16x2.f32", {convert_pair<to_f16_bits>, "wrr"}},
      {"cvt.rn.bf16x2.f32", {convert_pair<to_bf16_bits>, "wrr"}},
      {"elect.sync", {elect, "eM", Flow::Together}},
      {"stmatrix.sync.aligned.m8n8.x1.shared.b16",
       {store_matrices<false, 1>, "aL", Flow::Together}},
      {"stmatrix.sync.aligned.m8n8.x2.shared.b16",
       {store_matrices<false, 2>, "aL", Flow::Together}},
      {"stmatrix.sync.aligned.m8n8.x4.shared.b16",
       {store_matrices<false, 4>, "aL", Flow::Together}},
      {"stmatrix.sync.aligned.m8n8.x1.trans.shared.b16",
       {store_matrices<true, 1>, "aL", Flow::Together}},
      {"stmatrix.sync.aligned.m8n8.x2.trans.shared.b16",
       {store_matrices<true, 2>, "aL", Flow::Together}},
      {"stmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
       {store_matrices<true, 4>, "aL", Flow::Together}},
  };
  std::string known = unordered(name);
  if (known == "mbarrier.arrive.shared.b64" && operands == 3)
    return {arrive<false, true>, "War", Flow::Pause};
  const bool waits = known.find("_wait.") != known.npos;
  const auto found = forms.find(known);
  if (found == forms.end()) return {};
  Form form = found->second;
  if (waits && operands == 4)
    form.operands = known.find("parity") != known.npos ? "parr" : "palr";  // (with a time limit)
  return form;
}

Form form_of(std::string_view name, size_t operands) {
  if (name.starts_with("cp.async.bulk") || name == "prefetch.tensormap")
    return box_form(name, operands);
  if (name.starts_with("wgmma.")) return product_form(name, operands);
  return barrier_form(name, operands);
}

}  // namespace mixtape::ptx
