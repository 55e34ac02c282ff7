// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/reduce_shape.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace sherd::ft {
namespace {

TEST(ReduceShape, IsARingUpToSixteenMembersAndADoubleTreeAbove) {
  EXPECT_EQ(reduce_shape_of(1), ReduceShape::kRing);
  EXPECT_EQ(reduce_shape_of(16), ReduceShape::kRing);
  EXPECT_EQ(reduce_shape_of(17), ReduceShape::kDoubleTree);
  EXPECT_EQ(reduce_shape_of(1000), ReduceShape::kDoubleTree);
}

TEST(ReduceShape, HopsGrowWithTheLogarithmOfMembersAboveSixteen) {
  EXPECT_EQ(reduce_hops_of(1), 0);
  EXPECT_EQ(reduce_hops_of(2), 2);
  EXPECT_EQ(reduce_hops_of(16), 30);
  EXPECT_EQ(reduce_hops_of(17), 8);
  EXPECT_EQ(reduce_hops_of(24), 8);
  EXPECT_EQ(reduce_hops_of(32), 10);
  EXPECT_EQ(reduce_hops_of(1000), 18);
  EXPECT_DOUBLE_EQ(sent_share_of(1), 0);
  EXPECT_DOUBLE_EQ(sent_share_of(2), 1);
  EXPECT_DOUBLE_EQ(sent_share_of(1000), 2);
}

// The number of links to the root of one tree; too many show a cycle.
int links_to_root(int members, int tree, int position) {
  int links = 0;
  for (auto node = tree_node_of(members, tree, position);
       node.parent && links <= members; ++links) {
    node = tree_node_of(members, tree, *node.parent);
  }
  return links;
}

TEST(ReduceTrees, ReachAllMembersWithinTheirDepth) {
  for (int members = 2; members <= 1100; members += members < 70 ? 1 : 97) {
    for (int tree = 0; tree < kTrees; ++tree) {
      int deepest = 0;
      int roots = 0;
      for (int p = 0; p < members; ++p) {
        const TreeNode node = tree_node_of(members, tree, p);
        roots += node.parent ? 0 : 1;
        deepest = std::max(deepest, links_to_root(members, tree, p));
        EXPECT_LE(node.children.size(), 2U);
        for (const int child : node.children) {
          EXPECT_EQ(tree_node_of(members, tree, child).parent, p);
        }
        if (node.parent) {
          const auto up = tree_node_of(members, tree, *node.parent).children;
          EXPECT_EQ(std::count(up.begin(), up.end(), p), 1);
        }
      }
      EXPECT_EQ(roots, 1) << members;
      EXPECT_LE(deepest, tree_depth_of(members)) << members;
    }
  }
}

TEST(ReduceTrees, GiveNobodyChildrenInBoth) {
  for (int members = 2; members <= 70; ++members) {
    for (int p = 0; p < members; ++p) {
      EXPECT_TRUE(
          tree_node_of(members, 0, p).children.empty() ||
          tree_node_of(members, 1, p).children.empty())
          << p << " of " << members;
      EXPECT_LE(peers_of(members, p).size(), 4U);
    }
  }
}

TEST(ReduceTrees, HoldTogetherWithoutAnyOneMember) {
  for (const int members : {17, 18, 23, 24, 32, 33, 100}) {
    for (int dead = 0; dead < members; ++dead) {
      std::set<int> reached = {dead == 0 ? 1 : 0};
      std::vector<int> open(reached.begin(), reached.end());
      while (!open.empty()) {
        const int at = open.back();
        open.pop_back();
        for (const int peer : peers_of(members, at)) {
          if (peer != dead && reached.insert(peer).second) {
            open.push_back(peer);
          }
        }
      }
      EXPECT_EQ(reached.size(), static_cast<std::size_t>(members - 1))
          << dead << " of " << members;
    }
  }
}

TEST(ReducePeers, AreThoseOnBothSidesInARing) {
  EXPECT_TRUE(peers_of(1, 0).empty());
  EXPECT_EQ(receivers_of(5, 4), (std::vector<int>{0}));
  EXPECT_EQ(senders_of(5, 0), (std::vector<int>{4}));
  EXPECT_EQ(peers_of(5, 0), (std::vector<int>{1, 4}));
  EXPECT_EQ(peers_of(2, 1), (std::vector<int>{0}));
}

TEST(ReducePeers, SendToThoseWhoReceiveFromThem) {
  for (int members = 2; members <= 40; ++members) {
    for (int p = 0; p < members; ++p) {
      for (const int to : receivers_of(members, p)) {
        const auto back = senders_of(members, to);
        EXPECT_EQ(std::count(back.begin(), back.end(), p), 1);
      }
    }
  }
}

TEST(TreeChunk, FillsTheTreesUntilFramesAreTooShortOrTooLong) {
  constexpr std::int64_t kLimit = 131072;
  EXPECT_EQ(tree_chunk_of(0, 24, kLimit), 16384);
  EXPECT_EQ(tree_chunk_of(1000, 24, kLimit), 16384);
  EXPECT_EQ(tree_chunk_of(1'600'000, 24, kLimit), 100'000);
  EXPECT_EQ(tree_chunk_of(1'600'000, 1000, kLimit), 44'445);
  EXPECT_EQ(tree_chunk_of(100'000'000, 24, kLimit), kLimit);
  EXPECT_EQ(tree_chunk_of(100'000'000, 24, 100), 100);
}

}  // namespace
}  // namespace sherd::ft
