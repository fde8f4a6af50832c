// Copies of boxes of tensors (TMA): cp.async.bulk.*.
#include <algorithm>
#include <utility>

#include "emulator/ptx/tensor_map.h"
#include "emulator/ptx/warp.h"

namespace mixtape::ptx {
namespace {

constexpr uint64_t window_end(uint64_t window) { return window + window_size; }

TensorMap map_at(Warp& w, const Slot* address, int lane) {
  const uint64_t at = w.address(address, lane);
  if ((at >= shared_window && at < window_end(shared_window)) ||
      (at >= local_window && at < window_end(local_window)))
    w.fault(lane, "a tensor map must be a __grid_constant__ parameter or in global memory");
  TensorMap map;
  std::memcpy(static_cast<void*>(&map), w.generic(at, 128, 64, lane), sizeof map);
  if (map.is_map != TensorMap::mark) w.fault(lane, "this is no tensor map");
  return map;
}

// The box at the coordinates s[3], s[4], ... of the map at s.
Box box_at(Warp& w, const Slot* s, int rank, int lane) {
  const TensorMap map = map_at(w, s, lane);
  if (map.rank != rank)
    w.fault(lane, "a tensor map of " + std::to_string(map.rank) + " dimensions");
  const auto start = [&](int d) { return int64_t(int32_t(w.at<uint32_t>(s[3 + d])[lane])); };
  Box box;
  box.lane = lane;
  box.swizzle = map.swizzle;
  box.nan = map.nan, box.to_tf32 = map.to_tf32;
  box.row_bytes = uint32_t(map.box[0] * map.element_bytes);
  const int64_t first = std::clamp<int64_t>(start(0), 0, int64_t(map.size[0]));
  const int64_t last = std::clamp<int64_t>(start(0) + map.box[0], 0, int64_t(map.size[0]));
  size_t rows = 1;
  for (int d = 1; d < rank; ++d) rows *= map.box[d];
  for (size_t r = 0; r < rows; ++r) {
    uint64_t at = map.base + uint64_t(first) * map.element_bytes;
    bool inside = last > first;
    size_t rest = r;
    for (int d = 1; d < rank; ++d) {
      const int64_t i = start(d) + int64_t(rest % map.box[d]);
      rest /= map.box[d];
      inside = inside && i >= 0 && i < int64_t(map.size[d]);
      at += uint64_t(i) * map.stride[d];
    }
    Box::Row row{nullptr, uint32_t(first - start(0)) * map.element_bytes,
                 uint32_t(last - first) * map.element_bytes};
    if (inside)
      row.tensor = w.generic(at, int(row.inside), 1, lane);
    else
      row.skipped = row.inside = 0;
    box.rows.push_back(row);
  }
  return box;
}

// Copies one row of `bytes` without a tensor map.
Box plain_box(Warp& w, const Slot* s, Slot bytes, int lane) {
  const uint32_t n = w.at<uint32_t>(bytes)[lane];
  if (n == 0 || n % 16 != 0) w.fault(lane, "a copy of " + std::to_string(n) + " bytes");
  Box box;
  box.lane = lane;
  box.row_bytes = n;
  box.rows.push_back({w.generic(w.address(s, lane), int(n), 16, lane), 0, n});
  return box;
}

// Calls f with 16 bytes of the box in shared memory after the other.
template <class F>
void each_chunk(const Block& block, const Box& box, F f) {
  for (uint32_t i = 0; i < box.bytes(); i += 16) f(block.shared + box.place(i), i);
}

// Starts a load to a block, whose barrier is at the same place as this block's.
void load(Warp& w, Block& block, const Box& box) {
  const int lane = box.lane;
  const Barrier* const b = block.barrier(box.barrier);
  if (!b) w.fault(lane, "there is no mbarrier at " + hex(box.barrier));
  if (!w.knows(b->maker, b->made))
    w.fault(lane, "the mbarrier at " + hex(box.barrier) + " may be new to this warp");
  if (!b->fenced)
    w.fault(lane, "the mbarrier is new, and no fence.mbarrier_init or fence.proxy.async followed");
  w.touch(lane, block.shared + box.barrier, 8, Access::Atomic);
  each_chunk(block, box, [&](char* at, uint32_t) {
    w.touch(lane, at, 16, Access::Write);
    std::memset(at, 0xff, 16);
    if (watch_races) mark_in_flight(block, at, 16);
  });
  block.boxes.push_back(box);
  ++block.moves;
  if (landing == Landing::Early) block.land(block.boxes.size() - 1);
}
// The same to all of these blocks of the cluster.
void load(Warp& w, Box box, const Slot* to, const Slot* barrier, int alignment, uint32_t blocks) {
  const int lane = box.lane;
  box.shared = w.shared_address(to, int(box.bytes()), alignment, lane);
  box.barrier = w.shared_address(barrier, 8, 8, lane);
  if (blocks == 0) w.fault(lane, "a box for no block");
  if (watch_races)
    for (const Box::Row& r : box.rows)
      if (r.inside) w.touch(lane, r.tensor, int(r.inside), Access::AsyncRead);
  each_bit(blocks, [&](int rank) { load(w, w.peer(uint32_t(rank), lane), box); });
}
void load_box(Warp& w, const Code& c, uint32_t mask) {  // [to], [map, {at}], [barrier]
  const Slot* const s = w.list(c);
  const int rank = int(c.offset);
  const uint32_t own = 1u << w.block->rank;
  each_bit(mask, [&](int l) { load(w, box_at(w, s + 3, rank, l), s, s + 6 + rank, 128, own); });
}
void load_shared(Warp& w, const Code& c, uint32_t mask) {  // [to], [map, {at}], [barrier], blocks
  const Slot* const s = w.list(c);
  const int rank = int(c.offset);
  each_bit(mask, [&](int l) {
    load(w, box_at(w, s + 3, rank, l), s, s + 6 + rank, 128, w.at<uint16_t>(s[9 + rank])[l]);
  });
}
void load_plain(Warp& w, const Code& c, uint32_t mask) {  // [to], [from], bytes, [barrier]
  const Slot* const s = w.list(c);
  each_bit(mask, [&](int l) {
    load(w, plain_box(w, s + 3, s[6], l), s, s + 7, 16, 1u << w.block->rank);
  });
}

void store(Warp& w, Box box, const Slot* from, int alignment) {
  Block& block = *w.block;
  const int lane = box.lane;
  box.shared = w.shared_address(from, int(box.bytes()), alignment, lane);
  each_chunk(block, box, [&](char* at, uint32_t) { w.touch(lane, at, 16, Access::AsyncRead); });
  Store store{std::move(box), lane, w.store_group[size_t(lane)]};
  store.contents = contents_of(block, store.box);
  w.stores.push_back(std::move(store));
}
void store_box(Warp& w, const Code& c, uint32_t mask) {  // [map, {at}], [from]
  const Slot* const s = w.list(c);
  const int rank = int(c.offset);
  each_bit(mask, [&](int l) { store(w, box_at(w, s, rank, l), s + 3 + rank, 128); });
}
void store_plain(Warp& w, const Code& c, uint32_t mask) {  // [to], [from], bytes
  const Slot* const s = w.list(c);
  each_bit(mask, [&](int l) { store(w, plain_box(w, s, s[6], l), s + 3, 16); });
}
void commit(Warp& w, const Code&, uint32_t mask) {
  each_bit(mask, [&](int l) { ++w.store_group[size_t(l)]; });
}
// Until at most n groups of a lane are yet to be read, or else written.
template <bool read>
void wait(Warp& w, const Code& c, uint32_t mask) {  // n
  const int pending = w.list(c)[0];
  Block& block = *w.block;
  const auto ends = [&](const Store& s, int l) {
    return s.lane == l && s.group < w.store_group[size_t(l)] - pending;
  };
  // First, others may do what they should not do yet.
  bool early = false;
  each_bit(mask, [&](int l) {
    for (Store& s : w.stores)
      if (ends(s, l) && !s.is_read) early |= !std::exchange(s.is_awaited, true);
  });
  if (early) return ++block.moves, w.pause(true);
  each_bit(mask, [&](int l) {
    for (Store& s : w.stores) {
      if (!ends(s, l)) continue;
      if (!s.is_read) {
        if (contents_of(block, s.box) != s.contents)
          w.fault(l, "shared memory changed while a box was stored from it");
        each_chunk(block, s.box, [&](char* at, uint32_t) { w.touch(l, at, 16, Access::Read); });
        s.is_read = true;
      }
      if (!read) {
        for (const Box::Row& r : s.box.rows)
          if (r.inside) w.touch(l, r.tensor, int(r.inside), Access::Write);
        write_box(s.box, s.contents);
        s.lane = -1;
      }
    }
  });
  std::erase_if(w.stores, [](const Store& s) { return s.lane < 0; });
}
void check_map(Warp& w, const Code& c, uint32_t mask) {
  each_bit(mask, [&](int l) { map_at(w, w.list(c), l); });
}

}  // namespace

std::vector<char> contents_of(const Block& block, const Box& box) {
  std::vector<char> all(box.bytes());
  each_chunk(block, box, [&](char* at, uint32_t i) { std::memcpy(all.data() + i, at, 16); });
  return all;
}
void write_box(const Box& box, const std::vector<char>& contents) {
  const char* from = contents.data();
  for (const Box::Row& r : box.rows) {
    if (r.inside) std::memcpy(r.tensor, from + r.skipped, r.inside);
    from += box.row_bytes;
  }
}
void read_box(Block& block, const Box& box) {
  std::vector<char> all(box.bytes());
  for (size_t r = 0; r < box.rows.size(); ++r) {
    const Box::Row& row = box.rows[r];
    char* const to = all.data() + r * box.row_bytes;
    if (row.inside) std::memcpy(to + row.skipped, row.tensor, row.inside);
    if (box.to_tf32)
      for (uint32_t i = 0; i < box.row_bytes; i += 4) {
        uint32_t u = 0;
        std::memcpy(&u, to + i, 4);
        if ((u & 0x7f800000u) != 0x7f800000u) u = (u + 0x1000u) & ~0x1fffu;
        std::memcpy(to + i, &u, 4);
      }
    if (box.nan) {
      std::memset(to, 0xff, row.skipped);
      std::memset(to + row.skipped + row.inside, 0xff, box.row_bytes - row.skipped - row.inside);
    }
  }
  each_chunk(block, box, [&](char* at, uint32_t i) { std::memcpy(at, all.data() + i, 16); });
}

Form box_form(std::string_view name, size_t operands) {
  std::string known(name);
  for (const std::string_view part : {".tile", ".L2::cache_hint"})
    if (const size_t at = known.find(part); at != known.npos) known.erase(at, part.size());
  const bool hint = known.size() + 10 < name.size();
  const auto with = [&](Run run, std::string_view plain, std::string_view hinted,
                        Flow flow = Flow::Next) {
    return Form{run, hint ? hinted : plain, flow, 0};
  };
  if (known == "prefetch.tensormap") return {check_map, "a"};
  if (known == "cp.async.bulk.commit_group") return {commit, ""};
  if (known == "cp.async.bulk.wait_group") return {wait<false>, "i", Flow::Pause};
  if (known == "cp.async.bulk.wait_group.read") return {wait<true>, "i", Flow::Pause};
  if (known == "cp.async.bulk.shared.global.mbarrier::complete_tx::bytes")
    return with(load_plain, "aara", "aaral");
  if (known == "cp.async.bulk.global.shared.bulk_group") return with(store_plain, "aar", "aarl");
  const std::string_view tensor = "cp.async.bulk.tensor.";
  if (!known.starts_with(tensor) || known.size() < tensor.size() + 3) return {};
  const int rank = known[tensor.size()] - '0';
  const std::string_view rest = std::string_view(known).substr(tensor.size() + 2);
  Form form;
  if (rest == ".shared.global.mbarrier::complete_tx::bytes") form = with(load_box, "ama", "amal");
  if (rest == ".shared.global.mbarrier::complete_tx::bytes.multicast::cluster")
    form = with(load_shared, "amah", "amahl");
  if (rest == ".global.shared.bulk_group") form = with(store_box, "ma", "mal");
  form.number = rank;
  (void)operands;
  return form;
}

}  // namespace mixtape::ptx
