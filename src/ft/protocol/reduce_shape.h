// SPDX-License-Identifier: Apache-2.0
//
// The shape of the all-reduce between the members of an epoch: who is connected to whom. Few
// members form a ring; more form a double binary tree (Sanders, Speck and Traeff, "Two-tree
// algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35, 2009), whose
// frames pass 2 log2 R links instead of 2 (R - 1). The shape depends only on the number of members,
// so members and coordinator agree without exchanging messages. A change to it must raise
// kWireVersion. Members are named by their position in the epoch's order.
// docs/design/ring_reduce.md. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sherd::ft {

enum class ReduceShape { kRing, kDoubleTree };

// Up to this many members form a ring.
inline constexpr int kRingMembersMax = 16;
ReduceShape reduce_shape_of(int members);

inline constexpr int kTrees = 2;

// A member's place in one of the two trees. A member that has children in one tree is a leaf of the
// other.
struct TreeNode {
  std::optional<int> parent;  // Nullopt for the root.
  std::vector<int> children;  // At most two, in the order of the sum.
};
// REQUIRES: 0 <= tree < kTrees; 0 <= position < members.
TreeNode tree_node_of(int members, int tree, int position);

// The number of links from a leaf to the root, at most: log2 of the number of members, rounded
// down.
int tree_depth_of(int members);

// The positions to which a member sends data, ascending. In a ring this is the next one. In trees,
// the senders of a member are also its receivers.
std::vector<int> receivers_of(int members, int position);
// The positions from which it receives data, ascending.
std::vector<int> senders_of(int members, int position);
// Receivers and senders, each once.
std::vector<int> peers_of(int members, int position);

// How many links a frame passes, one after the other, until all members have its sum.
int reduce_hops_of(int members);
// How many bytes a member sends, at most, for each byte of a bucket.
double sent_share_of(int members);

// How many elements of a bucket one frame of a double tree carries: few enough that both trees are
// busy upwards and downwards, but enough that the bytes take longer than the fixed cost of a frame
// at its ends, and at most `chunk_elements`. REQUIRES: elements >= 0, chunk_elements > 0.
std::int64_t tree_chunk_of(
    std::int64_t elements, int members, std::int64_t chunk_elements);

}  // namespace sherd::ft
