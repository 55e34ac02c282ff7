// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/member_order.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <utility>
#include <gmock/gmock.h>
#include "ft/protocol/reduce_shape.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;

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

// Which links are not good.
class Links {
 public:
  void make_bad(ReplicaId one, ReplicaId other) {
    all_[std::minmax(one, other)] = LinkQuality::kBad;
  }
  void make_slow(ReplicaId one, ReplicaId other) {
    all_.emplace(std::minmax(one, other), LinkQuality::kSlow);
  }
  LinkQuality quality(ReplicaId one, ReplicaId other) const {
    const auto found = all_.find(std::minmax(one, other));
    return found == all_.end() ? LinkQuality::kGood : found->second;
  }
  bool bad(ReplicaId one, ReplicaId other) const {
    return quality(one, other) == LinkQuality::kBad;
  }
  LinkQualityOf function() const {
    return
        [this](ReplicaId one, ReplicaId other) { return quality(one, other); };
  }

 private:
  std::map<std::pair<ReplicaId, ReplicaId>, LinkQuality> all_;
};

std::vector<Member> order_of_members(
    const Links& links, const std::vector<Member>& members) {
  return order_of(members, links.function());
}

int links_of(
    const Links& links,
    const std::vector<Member>& members,
    LinkQuality quality) {
  const auto count = static_cast<int>(members.size());
  int found = 0;
  for (int i = 0; i < count; ++i) {
    for (const int peer : peers_of(count, i)) {
      const auto its = links.quality(
          members[static_cast<std::size_t>(i)].replica,
          members[static_cast<std::size_t>(peer)].replica);
      found += i < peer && its == quality ? 1 : 0;
    }
  }
  return found;
}
int bad_links(const Links& links, const std::vector<Member>& members) {
  return links_of(links, members, LinkQuality::kBad);
}
int slow_links(const Links& links, const std::vector<Member>& members) {
  return links_of(links, members, LinkQuality::kSlow);
}

TEST(MemberOrder, ARingOfGoodLinksStaysAsItIs) {
  Links links;
  links.make_bad(0, 2);
  EXPECT_EQ(order_of_members(links, members_of(4)), members_of(4));
}

TEST(MemberOrder, FourMembersGoRoundABadLink) {
  Links links;
  links.make_bad(0, 1);
  const auto ring = order_of_members(links, members_of(4));
  EXPECT_THAT(names_of(ring), ElementsAre(0, 2, 1, 3));
  // Each member keeps its own fields.
  EXPECT_EQ(ring[1], members_of(4)[2]);
}

TEST(MemberOrder, FewerThanFourHaveNoOtherRing) {
  Links links;
  links.make_bad(0, 1);
  for (ReplicaId count = 0; count < 4; ++count) {
    EXPECT_EQ(order_of_members(links, members_of(count)), members_of(count));
  }
}

TEST(MemberOrder, AnyOneBadLinkIsAvoidedInAnyRing) {
  for (ReplicaId count = 4; count <= 9; ++count) {
    for (ReplicaId one = 0; one < count; ++one) {
      for (ReplicaId other = one + 1; other < count; ++other) {
        Links links;
        links.make_bad(one, other);
        const auto ring = order_of_members(links, members_of(count));
        EXPECT_EQ(bad_links(links, ring), 0)
            << count << ": " << one << '-' << other;
        auto sorted = names_of(ring);
        std::sort(sorted.begin(), sorted.end());
        EXPECT_EQ(sorted, names_of(members_of(count)));
      }
    }
  }
}

TEST(MemberOrder, AReplicaWithoutGoodLinksSpoilsNoOthers) {
  Links links;
  for (ReplicaId other = 1; other < 6; ++other) {
    links.make_bad(0, other);
  }
  EXPECT_EQ(bad_links(links, order_of_members(links, members_of(6))), 2);
}

// Ore's theorem: each has good links to at least half of the others.
TEST(MemberOrder, ManyBadLinksAreAvoidedWhereEachHasGoodOnesToHalfOfTheRing) {
  const auto seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 300; ++i) {
    const auto count = static_cast<ReplicaId>(4 + random() % 13);
    Links links;
    std::vector<ReplicaId> bad_of(count, 0);
    for (int tries = 0; tries < 200; ++tries) {
      const auto one = static_cast<ReplicaId>(random() % count);
      const auto other = static_cast<ReplicaId>(random() % count);
      const auto bad_max = count - 1 - (count + 1) / 2;
      if (one != other && !links.bad(one, other) && bad_of[one] < bad_max &&
          bad_of[other] < bad_max) {
        ++bad_of[one];
        ++bad_of[other];
        links.make_bad(one, other);
      }
    }
    EXPECT_EQ(bad_links(links, order_of_members(links, members_of(count))), 0);
  }
}

TEST(MemberOrder, TreesAreOrderedRoundAnyOneBadLink) {
  for (const ReplicaId count : {17U, 18U, 24U}) {
    for (ReplicaId one = 0; one < count; ++one) {
      for (ReplicaId other = one + 1; other < count; ++other) {
        Links links;
        links.make_bad(one, other);
        const auto members = order_of_members(links, members_of(count));
        EXPECT_EQ(bad_links(links, members), 0)
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

TEST(MemberOrder, TreesAreOrderedRoundAFewBadLinks) {
  const auto seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 100; ++i) {
    const auto count = static_cast<ReplicaId>(17 + random() % 24);
    Links links;
    for (int bad = 0; bad < 4; ++bad) {
      const auto one = static_cast<ReplicaId>(random() % count);
      links.make_bad(one, static_cast<ReplicaId>((one + 1) % count));
    }
    EXPECT_EQ(bad_links(links, order_of_members(links, members_of(count))), 0);
  }
}

// ---- slow links ----

TEST(MemberOrder, AnyOneSlowLinkIsAvoided) {
  for (const ReplicaId count : {4U, 5U, 8U, 16U, 17U, 24U}) {
    for (ReplicaId one = 0; one < count; ++one) {
      for (ReplicaId other = one + 1; other < count; ++other) {
        Links links;
        links.make_slow(one, other);
        const auto members = order_of_members(links, members_of(count));
        EXPECT_EQ(slow_links(links, members), 0)
            << count << ": " << one << '-' << other;
        auto sorted = names_of(members);
        std::sort(sorted.begin(), sorted.end());
        EXPECT_EQ(sorted, names_of(members_of(count)));
      }
    }
  }
}

TEST(MemberOrder, ASlowLinkIsUsedWhereOnlyBadOnesAreLeft) {
  Links links;
  links.make_slow(0, 1);
  links.make_bad(0, 2);
  // Two of the three possible rings of four have bad links.
  links.make_bad(1, 3);
  links.make_bad(0, 3);
  links.make_bad(1, 2);
  const auto members = order_of_members(links, members_of(4));
  EXPECT_EQ(slow_links(links, members), 1);
}

TEST(MemberOrder, SlowLinksMakeNoOrderWithMoreBadOnes) {
  const auto seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    const auto count = static_cast<ReplicaId>(4 + random() % 30);
    Links bad;
    for (int j = 0; j < 3; ++j) {
      const auto one = static_cast<ReplicaId>(random() % count);
      bad.make_bad(one, static_cast<ReplicaId>((one + 1) % count));
    }
    const auto before = order_of_members(bad, members_of(count));
    Links both = bad;
    for (int j = 0; j < 3; ++j) {
      const auto one = static_cast<ReplicaId>(random() % count);
      const auto to = static_cast<ReplicaId>(random() % count);
      if (one != to) {
        both.make_slow(one, to);
      }
    }
    const auto after = order_of_members(both, before);
    EXPECT_LE(bad_links(bad, after), bad_links(bad, before));
    EXPECT_LE(
        cost_of_order(after, both.function()),
        cost_of_order(before, both.function()));
  }
}

TEST(MemberOrder, CostsWhatItsLinksCost) {
  Links links;
  const auto ring = members_of(5);
  EXPECT_EQ(cost_of_order(ring, links.function()), 0);
  links.make_slow(0, 2);  // It is not used.
  EXPECT_EQ(cost_of_order(ring, links.function()), 0);
  links.make_slow(4, 0);
  EXPECT_EQ(cost_of_order(ring, links.function()), 1);
  links.make_bad(1, 2);
  EXPECT_GT(cost_of_order(ring, links.function()), 5);
}

}  // namespace
}  // namespace sherd::ft
