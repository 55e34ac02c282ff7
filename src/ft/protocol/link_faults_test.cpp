// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/link_faults.h"

#include <algorithm>
#include <random>
#include <gmock/gmock.h>

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Member> members_of(ReplicaId count) {
  std::vector<Member> members;
  for (ReplicaId replica = 0; replica < count; ++replica) {
    members.push_back({replica, replica + 100, {{replica, replica + 1}}});
  }
  return members;
}

TEST(BrokenLinks, OfOneLinkTheAccusedIsTheCulprit) {
  EXPECT_THAT(culprits_of({}), IsEmpty());
  EXPECT_THAT(culprits_of({{0, 1}}), ElementsAre(0));
  EXPECT_THAT(culprits_of({{1, 0}}), ElementsAre(1));
}

TEST(BrokenLinks, ACommonEndIsTheCulpritWhoeverAccuses) {
  EXPECT_THAT(culprits_of({{1, 0}, {2, 0}}), ElementsAre(0));
  EXPECT_THAT(culprits_of({{1, 0}, {0, 2}, {3, 0}}), ElementsAre(0));
  EXPECT_THAT(culprits_of({{1, 0}, {2, 0}, {4, 3}}), ElementsAre(0, 4));
}

TEST(BrokenLinks, WhoSaysNothingIsACulpritWhateverElseIsBroken) {
  EXPECT_THAT(culprits_of({{1, 0}, {0, 0}}), ElementsAre(0));
}

TEST(BrokenLinks, AreNotLeftWithoutTheCulprits) {
  std::mt19937 random(7);  // The seed is always the same.
  for (int i = 0; i < 200; ++i) {
    std::vector<BrokenLink> links(random() % 12);
    for (auto& link : links) {
      link = {
          static_cast<ReplicaId>(random() % 6),
          static_cast<ReplicaId>(random() % 6)};
    }
    const auto culprits = culprits_of(links);
    for (const auto& link : links) {
      EXPECT_TRUE(
          std::binary_search(culprits.begin(), culprits.end(), link.accused) ||
          std::binary_search(
              culprits.begin(), culprits.end(), link.noticed_by));
    }
  }
}

TEST(BrokenLinks, OfTwoSilentMembersAreTheirLinkWhereTheyAreConnected) {
  const auto members = members_of(17);
  // Positions 0 and 1 are connected, 0 and 8 are not.
  const auto links = links_of_silent(members, {0, 1});
  EXPECT_THAT(links, ElementsAre(BrokenLink{.accused = 1, .noticed_by = 0}));
  EXPECT_EQ(links_of_silent(members, {0, 8}).size(), 2U);
  EXPECT_THAT(
      links_of_silent(members_of(16), {0, 15}),
      ElementsAre(BrokenLink{.accused = 0, .noticed_by = 15}));
}

}  // namespace
}  // namespace sherd::ft
