// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/messages.h"

#include <gtest/gtest.h>

namespace sherd::ft {
namespace {

TEST(RankAddresses, AreThoseTheyWereMadeOfByRank) {
  const std::vector<RankAddress> all = {
      {"a", 1, 2, {7, 7}},
      {"a", 3, 4, {7, 7}},
      {"b", 5, 6, {7, 7}},
      {"a", 7, 8, {7, 7}},
      {"a", 9, 10, {8, 8}}};
  const RankAddresses addresses = all;
  EXPECT_EQ(addresses.hosts().size(), 4U);
  ASSERT_EQ(addresses.size(), all.size());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    EXPECT_EQ(addresses[rank], all[rank]);
  }
  EXPECT_EQ(addresses.front(), all.front());
}

TEST(RankAddresses, AreEqualWhereAllRanksAre) {
  const std::vector<RankAddress> all = {{"a", 1, 2}, {"b", 3, 4}};
  EXPECT_EQ(RankAddresses(all), RankAddresses(all));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    auto others = all;
    ++others[rank].fetch_port;
    EXPECT_NE(RankAddresses(all), RankAddresses(others));
  }
  EXPECT_NE(RankAddresses(all), RankAddresses({all[0]}));
  EXPECT_NE(RankAddresses(all), RankAddresses());
}

TEST(RankAddresses, OfNobodyAreEmpty) {
  EXPECT_TRUE(RankAddresses().empty());
  EXPECT_TRUE(RankAddresses(std::vector<RankAddress>()).empty());
  const std::vector<RankAddresses::HostRanks> without_ranks = {{"a", {}, {}}};
  EXPECT_TRUE(RankAddresses(without_ranks).empty());
  EXPECT_EQ(RankAddresses().size(), 0U);
}

}  // namespace
}  // namespace sherd::ft
