#pragma once
// Levels: the ranks that exchange pieces of a buffer with each other. First these are the ranks of
// a node (a machine), then those at the same place in every node, so that little travels between
// nodes.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mixtape::dist {

// The cut of a buffer into a piece for each rank: the first element of each piece, and the end.
using Cut = std::vector<int64_t>;

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Ranks of which each exchanges parts of a buffer with all others.
struct Group {
  int first, stride, count;

  int index(int rank) const { return (rank - first) / stride; }
  // The other ranks, beginning after `rank`, so that not all send to the same one first.
  std::vector<int> others(int rank) const {
    std::vector<int> ranks;
    for (int i = 1; i < count; ++i) ranks.push_back(first + (index(rank) + i) % count * stride);
    return ranks;
  }
};

struct Levels {
  int rank, size, of_node;  // ranks, numbered node by node
  const Cut& cut;

  int nodes() const { return size / of_node; }
  Group node() const { return {rank / of_node * of_node, 1, of_node}; }
  Group across() const { return {rank % of_node, of_node, nodes()}; }
  Range piece(int r) const { return {cut[std::size_t(r)], cut[std::size_t(r) + 1]}; }
  std::vector<Range> own_piece(int r) const { return {piece(r)}; }
  // The pieces of the ranks with r's place in each node.
  std::vector<Range> pieces_like(int r) const {
    std::vector<Range> pieces;
    for (int q = r % of_node; q < size; q += of_node) pieces.push_back(piece(q));
    return pieces;
  }
  // The places of this rank's ranges in a buffer that holds them one after the other.
  Cut column() const {
    Cut column{0};
    for (const Range& piece : pieces_like(rank)) column.push_back(column.back() + piece.size());
    return column;
  }
};

}  // namespace mixtape::dist
