// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/link_faults.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <gmock/gmock.h>
#include "ft/protocol/reduce_shape.h"

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

std::vector<ReplicaId> names_of(const std::vector<Member>& members) {
  std::vector<ReplicaId> names;
  for (const auto& member : members) {
    names.push_back(member.replica);
  }
  return names;
}

int bad_links(const LinkFaults& links, const std::vector<Member>& ring) {
  int bad = 0;
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const auto& next = ring[(i + 1) % ring.size()];
    bad += links.bad(ring[i].replica, next.replica) ? 1 : 0;
  }
  return bad;
}

void make_bad(LinkFaults& links, ReplicaId one, ReplicaId other) {
  links.suspect(one, other, {1, 1});
  links.suspect(one, other, {1, 2});
}

TEST(LinkFaults, AreBadWhenSuspectedInTwoEpochs) {
  LinkFaults links;
  EXPECT_FALSE(links.suspect(0, 1, {1, 3}));
  EXPECT_FALSE(links.suspect(1, 0, {1, 3}));  // The other end says so, too.
  EXPECT_FALSE(links.suspect(1, 0, {1, 2}));  // It comes late.
  EXPECT_FALSE(links.bad(0, 1));
  EXPECT_TRUE(links.suspect(1, 0, {1, 4}));
  EXPECT_TRUE(links.bad(0, 1));
  EXPECT_TRUE(links.bad(1, 0));
  EXPECT_FALSE(links.suspect(0, 1, {1, 5}));  // It is bad already.
  EXPECT_FALSE(links.bad(0, 2));
}

TEST(LinkFaults, AreBadAtOnceWhenTheyCannotBeConnected) {
  LinkFaults links;
  EXPECT_TRUE(links.fail(0, 1, {1, 3}));
  EXPECT_TRUE(links.bad(1, 0));
  EXPECT_FALSE(links.fail(1, 0, {1, 4}));
  EXPECT_FALSE(links.fail(2, 2, {1, 4}));
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
  std::mt19937 random(7);  // Always the same.
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

TEST(LinkFaults, OfWhoStartsAnewAreForgotten) {
  LinkFaults links;
  make_bad(links, 0, 1);
  make_bad(links, 2, 3);
  links.forget(1);
  EXPECT_FALSE(links.bad(0, 1));
  EXPECT_TRUE(links.bad(2, 3));
}

TEST(LinkFaults, NobodyIsAtOddsWithItself) {
  LinkFaults links;
  make_bad(links, 1, 1);
  EXPECT_TRUE(links.all().empty());
}

TEST(LinkFaults, ARingOfGoodLinksStaysAsItIs) {
  LinkFaults links;
  make_bad(links, 0, 2);
  EXPECT_EQ(links.ring_of(members_of(4)), members_of(4));
}

TEST(LinkFaults, FourMembersGoRoundABadLink) {
  LinkFaults links;
  make_bad(links, 0, 1);
  const auto ring = links.ring_of(members_of(4));
  EXPECT_THAT(names_of(ring), ElementsAre(0, 2, 1, 3));
  // Each keeps what is its own.
  EXPECT_EQ(ring[1], members_of(4)[2]);
}

TEST(LinkFaults, FewerThanFourHaveNoOtherRing) {
  LinkFaults links;
  make_bad(links, 0, 1);
  for (ReplicaId count = 0; count < 4; ++count) {
    EXPECT_EQ(links.ring_of(members_of(count)), members_of(count));
  }
}

TEST(LinkFaults, AnyOneBadLinkIsAvoidedInAnyRing) {
  for (ReplicaId count = 4; count <= 9; ++count) {
    for (ReplicaId one = 0; one < count; ++one) {
      for (ReplicaId other = one + 1; other < count; ++other) {
        LinkFaults links;
        make_bad(links, one, other);
        const auto ring = links.ring_of(members_of(count));
        EXPECT_EQ(bad_links(links, ring), 0)
            << count << ": " << one << '-' << other;
        auto sorted = names_of(ring);
        std::sort(sorted.begin(), sorted.end());
        EXPECT_EQ(sorted, names_of(members_of(count)));
      }
    }
  }
}

TEST(LinkFaults, AReplicaWithoutGoodLinksSpoilsNoOthers) {
  LinkFaults links;
  for (ReplicaId other = 1; other < 6; ++other) {
    make_bad(links, 0, other);
  }
  EXPECT_EQ(bad_links(links, links.ring_of(members_of(6))), 2);
}

// Ore: each has good links to half of the others at least.
TEST(LinkFaults, ManyBadLinksAreAvoidedWhereEachHasGoodOnesToHalfOfTheRing) {
  const auto seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 300; ++i) {
    const auto count = static_cast<ReplicaId>(4 + random() % 13);
    LinkFaults links;
    std::vector<ReplicaId> bad_of(count, 0);
    for (int tries = 0; tries < 200; ++tries) {
      const auto one = static_cast<ReplicaId>(random() % count);
      const auto other = static_cast<ReplicaId>(random() % count);
      const auto bad_max = count - 1 - (count + 1) / 2;
      if (one != other && !links.bad(one, other) && bad_of[one] < bad_max &&
          bad_of[other] < bad_max) {
        ++bad_of[one];
        ++bad_of[other];
        make_bad(links, one, other);
      }
    }
    EXPECT_EQ(bad_links(links, links.ring_of(members_of(count))), 0);
  }
}

int bad_links_of_trees(
    const LinkFaults& links, const std::vector<Member>& members) {
  const auto count = static_cast<int>(members.size());
  int bad = 0;
  for (int i = 0; i < count; ++i) {
    for (const int peer : peers_of(count, i)) {
      bad += i < peer &&
              links.bad(
                  members[static_cast<std::size_t>(i)].replica,
                  members[static_cast<std::size_t>(peer)].replica)
          ? 1
          : 0;
    }
  }
  return bad;
}

TEST(LinkFaults, TreesAreOrderedRoundAnyOneBadLink) {
  for (const ReplicaId count : {17U, 18U, 24U}) {
    for (ReplicaId one = 0; one < count; ++one) {
      for (ReplicaId other = one + 1; other < count; ++other) {
        LinkFaults links;
        make_bad(links, one, other);
        const auto members = links.ring_of(members_of(count));
        EXPECT_EQ(bad_links_of_trees(links, members), 0)
            << count << ": " << one << '-' << other;
        auto sorted = names_of(members);
        std::sort(sorted.begin(), sorted.end());
        EXPECT_EQ(sorted, names_of(members_of(count)));
        const auto peers =
            peers_of(static_cast<int>(count), static_cast<int>(one));
        if (std::count(peers.begin(), peers.end(), static_cast<int>(other)) ==
            0) {
          EXPECT_EQ(members, members_of(count)) << "it is not used";
        }
      }
    }
  }
}

TEST(LinkFaults, TreesAreOrderedRoundAFewBadLinks) {
  const auto seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 100; ++i) {
    const auto count = static_cast<ReplicaId>(17 + random() % 24);
    LinkFaults links;
    for (int bad = 0; bad < 4; ++bad) {
      const auto one = static_cast<ReplicaId>(random() % count);
      make_bad(links, one, static_cast<ReplicaId>((one + 1) % count));
    }
    EXPECT_EQ(bad_links_of_trees(links, links.ring_of(members_of(count))), 0);
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

TEST(LinkFaults, MadeUpOnesFillNoMemory) {
  LinkFaults links;
  for (ReplicaId one = 0; one < 100; ++one) {
    for (ReplicaId other = 1000; other < 1100; ++other) {
      links.suspect(one, other, {1, 1});
    }
  }
  EXPECT_EQ(links.all().size(), 4096U);
}

}  // namespace
}  // namespace sherd::ft
