// The places of registers in the memory of a warp.
#include <algorithm>

#include "emulator/ptx/decoder.h"

namespace mixtape::ptx {

// Registers whose live ranges do not overlap share a slot, so that those of a warp stay in the
// cache. (A range goes from the first line to the last that names the register, extended over
// every loop that it enters or leaves. Diverged lanes have elements of their own.)
void Decoder::place_registers() {
  std::vector<std::pair<int32_t, int32_t>> loops;
  for (size_t i = 0; i < kernel_.code.size(); ++i) {
    const Code& c = kernel_.code[i];
    if (c.flow == Flow::Branch && c.target <= int32_t(i)) loops.push_back({c.target, int32_t(i)});
    for (int32_t k = 0; c.flow == Flow::Switch && k < c.target; ++k)
      if (const Slot to = kernel_.lists[c.list + size_t(k)]; to <= int32_t(i))
        loops.push_back({to, int32_t(i)});
  }
  std::ranges::sort(loops);
  for (Life& life : lives_)
    for (bool grown = true; grown;) {
      grown = false;
      for (const auto& [begin, end] : loops)
        if (life.first < begin && life.last >= begin && life.last < end) {
          life.last = end;
          grown = true;
        } else if (life.first > begin && life.first <= end && life.last > end) {
          life.first = begin;  // the target of a backward jump may follow it
          grown = true;
        }
    }
  std::vector<size_t> order(lives_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](size_t i) { return lives_[i].first; });
  std::map<int, std::vector<Slot>> free;
  std::multimap<int32_t, size_t> ends;
  std::vector<Slot> places(lives_.size());
  int bytes = Special::specials_end;
  for (const size_t i : order) {
    const Life& life = lives_[i];
    while (!ends.empty() && ends.begin()->first < life.first) {
      const size_t gone = ends.begin()->second;
      free[lives_[gone].width].push_back(places[gone]);
      ends.erase(ends.begin());
    }
    auto& room = free[life.width];
    if (room.empty()) {
      const int size = life.width == 0 ? 4 : lanes * life.width;
      bytes = round_up(bytes, std::min(size, 64));
      room.push_back(bytes);
      bytes += size;
    }
    places[i] = room.back();
    room.pop_back();
    ends.emplace(life.last, i);
  }
  const auto place = [&](Slot& s) {
    if (s >= Special::specials_end) s = places[size_t(s - Special::specials_end)];
  };
  for (Code& c : kernel_.code) {
    for (Slot& s : c.at) place(s);
    place(c.guard);
    if (c.flow == Flow::Together) place(c.target);
  }
  for (size_t i = 0; i < slots_in_lists_; ++i) place(kernel_.lists[i]);
  kernel_.register_bytes = bytes;
}

}  // namespace mixtape::ptx
