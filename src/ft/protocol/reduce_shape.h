// SPDX-License-Identifier: Apache-2.0
//
// The shape of the all-reduce between the members of an epoch: who is connected to whom. Few members
// form a ring; more form a double binary tree (Sanders, Speck and Traeff, "Two-tree algorithms for
// full bandwidth broadcast, reduction and scan", Parallel Computing 35, 2009), whose frames pass
// 2 log2 R links instead of 2 (R - 1). A function of their number alone, so that members and
// coordinator agree without a word; whoever changes it raises kWireVersion. Members are named by
// their position in the epoch's order. docs/design/ring_reduce.md. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace sherd::ft {

enum class ReduceShape { kRing, kDoubleTree };

// Up to so many members form a ring.
inline constexpr int kRingMembersMax = 16;
ReduceShape reduce_shape_of(int members);

inline constexpr int kTrees = 2;

// A member's place in one of the two trees. Whoever has children in one is a leaf of the other.
struct TreeNode {
  std::optional<int> parent;  // None: it is the root.
  std::vector<int> children;  // Two at most, in the order of the sum.
};
// REQUIRES: 0 <= tree < kTrees; 0 <= position < members.
TreeNode tree_node_of(int members, int tree, int position);

// The links from a leaf to the root, at most: log2 of the members, rounded down.
int tree_depth_of(int members);

// To whom a member sends data, ascending. In a ring that is the next one; in trees those to whom it
// sends are those from whom it receives.
std::vector<int> receivers_of(int members, int position);
// From whom it receives data, ascending.
std::vector<int> senders_of(int members, int position);
// Both, each once.
std::vector<int> peers_of(int members, int position);

// How many links a frame passes one after the other, until all members have the sum of it.
int reduce_hops_of(int members);
// How many bytes a member sends, at most, for each byte of a bucket.
double sent_share_of(int members);

// How many elements of a bucket a frame of a double tree carries: so many that both trees are full
// upwards and downwards, but not so few that a frame costs its ends more than its bytes take, and
// `chunk_elements` at most. REQUIRES: elements >= 0, chunk_elements > 0.
std::int64_t tree_chunk_of(
    std::int64_t elements, int members, std::int64_t chunk_elements);

}  // namespace sherd::ft
