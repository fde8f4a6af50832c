#pragma once
// Arena: large blocks of memory, cut from segments by best fit. Free neighbours become one again.

#include <cstddef>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace mixtape {

class Arena {
 public:
  struct Segment {
    char* begin = nullptr;  // null for none
    size_t bytes = 0;
  };

  // The start of the smallest free piece of at least `bytes`, or null. The rest of it stays free,
  // unless it is too small for any block.
  void* take(size_t bytes, size_t least) {
    const auto best = free_.lower_bound({bytes, nullptr});
    if (best == free_.end()) return nullptr;
    char* const begin = best->second;
    Piece& piece = pieces_.at(begin);
    const size_t rest = piece.bytes - bytes;
    if (rest >= least) {
      Free entry{{rest, begin + bytes}};
      pieces_.emplace(begin + bytes, Piece{rest});  // from here on nothing throws
      free_.insert(entry.extract(entry.begin()));
      piece.bytes = bytes;
    }
    piece.entry = free_.extract(best);
    return begin;
  }

  void give(void* block) noexcept {
    auto piece = pieces_.find(static_cast<char*>(block));
    Free::node_type entry = std::move(piece->second.entry);
    const auto join = [this](Pieces::iterator first, Pieces::iterator second) {
      first->second.bytes += second->second.bytes;
      pieces_.erase(second);
    };
    const auto next = std::next(piece);
    if (next != pieces_.end() && next->second.of_segment == 0 && is_free(next)) {
      free_.erase(key(next));
      join(piece, next);
    }
    if (piece->second.of_segment == 0 && is_free(std::prev(piece))) {
      const auto before = std::prev(piece);
      free_.erase(key(before));
      join(before, piece);
      piece = before;
    }
    entry.value() = key(piece);
    free_.insert(std::move(entry));
  }

  void add(const Segment& segment) {
    Free entry{{segment.bytes, segment.begin}};
    pieces_.emplace(segment.begin, Piece{segment.bytes, segment.bytes});
    free_.insert(entry.extract(entry.begin()));
  }
  // Removes a segment of at least `bytes` whose memory is all free.
  Segment remove_unused(size_t bytes = 0) noexcept {
    for (auto at = free_.lower_bound({bytes, nullptr}); at != free_.end(); ++at) {
      const auto piece = pieces_.find(at->second);
      if (piece->second.bytes != piece->second.of_segment) continue;
      const Segment unused{piece->first, piece->second.bytes};
      free_.erase(at);
      pieces_.erase(piece);
      return unused;
    }
    return {};
  }
  bool is_empty() const { return pieces_.empty(); }

 private:
  using Free = std::set<std::pair<size_t, char*>>;  // by size, then by address
  struct Piece {
    size_t bytes;
    size_t of_segment = 0;       // in a segment's first piece, the bytes of all
    Free::node_type entry = {};  // while in use: its place in free_
  };
  using Pieces = std::map<char*, Piece>;

  static bool is_free(Pieces::iterator piece) { return piece->second.entry.empty(); }
  static Free::value_type key(Pieces::iterator piece) {
    return {piece->second.bytes, piece->first};
  }

  Pieces pieces_;
  Free free_;
};

}  // namespace mixtape
