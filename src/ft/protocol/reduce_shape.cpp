// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/reduce_shape.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace sherd::ft {
namespace {

// Both trees are the same tree of labels 1 to R, in which the less often a label is divisible by
// two, the nearer to it are its children: odd labels are leaves. The second tree assigns its labels
// in reverse, or shifted by one if R is odd, so that a member with an odd label in one tree has an
// even one in the other. If R is odd, one member is a leaf of both.
int label_of(int members, int tree, int position) {
  if (tree == 0) {
    return position + 1;
  }
  if (members % 2 == 0) {
    return members - position;
  }
  return position == 0 ? members : position;
}

int position_of(int members, int tree, int label) {
  if (tree == 0) {
    return label - 1;
  }
  return members % 2 == 0 ? members - label : label % members;
}

int lowest_bit(int label) { return label & -label; }

// Returns 0 for the root.
int parent_label(int members, int label) {
  const int bit = lowest_bit(label);
  const int up = (label ^ bit) | (bit << 1);
  return up <= members ? up : label ^ bit;
}

std::vector<int> sorted(std::vector<int> positions) {
  std::ranges::sort(positions);
  const auto again = std::ranges::unique(positions);
  positions.erase(again.begin(), again.end());
  return positions;
}

// In a ring the position `ring_step` further on.
std::vector<int> neighbours_of(int members, int position, int ring_step) {
  if (members == 1) {
    return {};
  }
  if (reduce_shape_of(members) == ReduceShape::kRing) {
    return {(position + ring_step) % members};
  }
  std::vector<int> peers;
  for (int tree = 0; tree < kTrees; ++tree) {
    const TreeNode node = tree_node_of(members, tree, position);
    peers.insert(peers.end(), node.children.begin(), node.children.end());
    if (node.parent) {
      peers.push_back(*node.parent);
    }
  }
  return sorted(std::move(peers));
}

}  // namespace

ReduceShape reduce_shape_of(int members) {
  return members <= kRingMembersMax ? ReduceShape::kRing
                                    : ReduceShape::kDoubleTree;
}

TreeNode tree_node_of(int members, int tree, int position) {
  SHERD_ASSERT(
      tree >= 0 && tree < kTrees && position >= 0 && position < members);
  const int label = label_of(members, tree, position);
  TreeNode node;
  if (const int parent = parent_label(members, label); parent != 0) {
    node.parent = position_of(members, tree, parent);
  }
  int distance = lowest_bit(label) / 2;
  if (distance > 0) {
    node.children.push_back(position_of(members, tree, label - distance));
  }
  while (distance > 0 && label + distance > members) {
    distance /= 2;
  }
  if (distance > 0) {
    node.children.push_back(position_of(members, tree, label + distance));
  }
  return node;
}

int tree_depth_of(int members) {
  return std::bit_width(static_cast<unsigned>(members)) - 1;
}

std::vector<int> receivers_of(int members, int position) {
  return neighbours_of(members, position, 1);
}

std::vector<int> senders_of(int members, int position) {
  return neighbours_of(members, position, members - 1);
}

std::vector<int> peers_of(int members, int position) {
  std::vector<int> peers = receivers_of(members, position);
  const std::vector<int> senders = senders_of(members, position);
  peers.insert(peers.end(), senders.begin(), senders.end());
  return sorted(std::move(peers));
}

int reduce_hops_of(int members) {
  return reduce_shape_of(members) == ReduceShape::kRing
      ? 2 * (members - 1)
      : 2 * tree_depth_of(members);
}

// In trees a member sends half of each bucket to its parent and two children in one tree, and half
// to its parent in the other one.
double sent_share_of(int members) {
  return reduce_shape_of(members) == ReduceShape::kRing
      ? 2.0 * (members - 1) / members
      : 2.0;
}

std::int64_t tree_chunk_of(
    std::int64_t elements, int members, std::int64_t chunk_elements) {
  // 64 KiB: a frame costs its ends about 50 us, in which a 10 Gbit/s link carries as much.
  constexpr std::int64_t kShortest = 16384;
  const std::int64_t frames = std::int64_t{4} * tree_depth_of(members);
  const std::int64_t even = (elements + frames - 1) / frames;
  return std::min(std::max(even, kShortest), chunk_elements);
}

}  // namespace sherd::ft
