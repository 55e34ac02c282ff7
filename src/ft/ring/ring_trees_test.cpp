// SPDX-License-Identifier: Apache-2.0
//
// Faults that only epochs with more members than a ring can have: each member has several
// connections, which have no order among each other, and epochs change between trees and rings.
// ring_test.cpp has their sums.
#include "ft/ring/ring.h"

#include <algorithm>
#include <csignal>
#include <numeric>
#include <random>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/protocol/reduce_shape.h"
#include "ft/ring/child_replica_testing.h"
#include "ft/ring/reduce_schedule.h"
#include "ft/ring/ring_testing.h"
#include "net/tcp_socket.h"

namespace sherd::ft::ring {
namespace {

using testing::HasSubstr;

constexpr int kMembers = 17;
const Layout kTwo = {20000, 20000};

std::vector<double> ones(std::size_t members) {
  return std::vector<double>(members, 1.0);
}

class Trees : public testing::TestWithParam<DataPath> {};
INSTANTIATE_TEST_SUITE_P(Ways, Trees, kAllDataPaths, [](const auto& one) {
  return name_of(one.param);
});

TEST_P(Trees, ASmallBucketCostsEachMemberFourFramesAtMost) {
  RingGroup group(24, {.layout = {100}, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  group.give_all();
  group.begin(epoch, 1, ones(24));
  group.expect_reduced(epoch, 1, ones(24));
  std::uint32_t all = 0;
  for (int i = 0; i < 24; ++i) {
    const auto links = group[i].ring.progress().place->links;
    EXPECT_LE(links.size(), 4U);
    std::uint32_t frames = 0;
    for (const auto& link : links) {
      frames += link.frames_out;
    }
    EXPECT_LE(frames, 3U);
    all += frames;
  }
  // In a ring it would be 46 for each.
  EXPECT_EQ(all, 46U);
}

TEST_P(Trees, WhatWentIsCountedAtItsReceiverAsWhatCame) {
  RingGroup group(kMembers, {.layout = {30000, 10}, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  group.give_all();
  group.begin(epoch, 1, ones(kMembers));
  group.expect_reduced(epoch, 1, ones(kMembers));
  for (int i = 0; i < kMembers; ++i) {
    const auto here = group[i].ring.progress().place;
    ASSERT_TRUE(here.has_value());
    EXPECT_EQ(here->links.size(), peers_of(kMembers, i).size());
    for (const auto& link : here->links) {
      const auto there =
          group[static_cast<int>(link.peer)].ring.progress().place;
      const auto back = std::find_if(
          there->links.begin(), there->links.end(), [&](const RingLink& one) {
            return one.peer == static_cast<ReplicaId>(i);
          });
      ASSERT_NE(back, there->links.end());
      EXPECT_EQ(link.frames_out, back->frames_in);
    }
  }
}

// From any member, following waits_for leads to the member that all wait for.
TEST_P(Trees, ProgressLeadsToTheMemberThatIsWaitedFor) {
  RingGroup group(kMembers, {.layout = {10, 10}, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  for (const int late : {0, 3, 7, 16}) {
    SCOPED_TRACE(late);
    for (int i = 0; i < kMembers; ++i) {
      group[i].ring.forget();
    }
    const auto again = group.epoch(2 + static_cast<std::uint64_t>(late));
    ASSERT_TRUE(group.join(again));
    for (int i = 0; i < kMembers; ++i) {
      if (i != late) {
        group[i].give_all();
      }
    }
    group.begin(again, 1, ones(kMembers));
    const auto leads_there = [&](int at) {
      for (int hops = 0; hops <= 2 * tree_depth_of(kMembers); ++hops) {
        const auto waits_for = group[at].ring.progress().waits_for;
        if (!waits_for) {
          return at == late;
        }
        at = static_cast<int>(*waits_for);
      }
      return false;
    };
    EXPECT_TRUE(wait_until([&] {
      for (int i = 0; i < kMembers; ++i) {
        if (!group[i].ring.progress().attempt || !leads_there(i)) {
          return false;
        }
      }
      return true;
    }));
  }
}

TEST_P(Trees, AMemberThatBeginsLateIsWaitedForAndHoldsLittle) {
  // Far more slices than are in flight at once.
  RingGroup group(kMembers, {.layout = {200000}, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  const int late = *tree_node_of(kMembers, 0, 0).parent;
  group.give_all();
  for (int i = 0; i < kMembers; ++i) {
    if (i != late) {
      group[i].ring.begin({epoch.epoch, 1}, ones(kMembers));
    }
  }
  ASSERT_TRUE(wait_until(
      [&] { return group[late].ring.counters().received_bytes > 0; }));
  const ReduceSchedule schedule({200000}, {kMembers, late, 1024});
  const auto window = static_cast<std::uint64_t>(schedule.window(4));
  EXPECT_LE(
      group[late].ring.counters().received_bytes,
      2 * 2 * window * group.chunk_bytes());
  group[late].ring.begin({epoch.epoch, 1}, ones(kMembers));
  group.expect_reduced(epoch, 1, ones(kMembers));
}

TEST_P(Trees, WhoHasTheSumMayGoOnWithoutHarmToWhoHasNot) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  RingGroup group(kMembers, {.layout = {30000}, .way = GetParam()});
  for (std::int64_t step = 1; step <= 8; ++step) {
    const auto epoch = group.epoch(static_cast<std::uint64_t>(step));
    ASSERT_TRUE(group.join(epoch));
    group.give_all();
    group.begin(epoch, step, ones(kMembers));
    const int first = static_cast<int>(random() % kMembers);
    ASSERT_TRUE(
        group[first].events_seen.reduced({epoch.epoch, step}).has_value());
    group[first].ring.stop(epoch.epoch);
    group.expect_reduced(epoch, step, ones(kMembers));
    for (int i = 0; i < kMembers; ++i) {
      group[i].ring.stop(epoch.epoch);
      group[i].ring.forget();
    }
  }
}

TEST_P(Trees, AStopIsPassedOnToAll) {
  for (const int stopped : {0, 7, 15}) {
    SCOPED_TRACE(stopped);
    RingGroup group(kMembers, {.layout = {100000}, .way = GetParam()});
    const auto epoch = group.epoch(1);
    ASSERT_TRUE(group.join(epoch));
    group.begin(epoch, 1, ones(kMembers));
    group[stopped].ring.stop(epoch.epoch);
    for (int i = 0; i < kMembers; ++i) {
      if (i == stopped) {
        EXPECT_FALSE(group[i].events_seen.has_failed(epoch.epoch));
        continue;
      }
      const auto failure = group[i].events_seen.failed(epoch.epoch);
      ASSERT_TRUE(failure.has_value());
      EXPECT_EQ(failure->fault, RingFault::kStopped);
      EXPECT_EQ(failure->accused, static_cast<ReplicaId>(stopped));
      EXPECT_EQ(failure->reporter, static_cast<ReplicaId>(stopped));
    }
  }
}

// One member after another stops and overwrites its memory, which others are reading.
TEST_P(Trees, StopsAtRandomMomentsLeaveNoWrongSumAndNothingBehind) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const std::size_t before = descriptors();
  {
    RingGroup group(
        kMembers,
        {.layout = {150000, 1000}, .chunk_bytes = 16384, .way = GetParam()});
    const auto weights = ones(kMembers);
    const Floats sum = group.expected(group.epoch(1), weights);
    const std::size_t idle = descriptors();
    std::vector<int> order(kMembers);
    std::iota(order.begin(), order.end(), 0);
    group.give_all();
    for (std::uint64_t n = 1; n <= 15; ++n) {
      const auto epoch = group.epoch(n);
      ASSERT_TRUE(group.join(epoch));
      const auto sent = group[0].ring.counters().sent_bytes;
      group.begin(epoch, 1, weights);
      const auto enough = sent + random() % 1200000;
      for (auto polls = random() % 3000;
           polls > 0 && group[0].ring.counters().sent_bytes < enough;) {
        --polls;
      }
      std::shuffle(order.begin(), order.end(), random);
      for (const int i : order) {
        auto& one = group[i];
        one.ring.stop(epoch.epoch);
        if (one.events_seen.has_reduced({epoch.epoch, 1})) {
          EXPECT_TRUE(same_bits(one.out, sum)) << "replica " << i;
        }
        one.ring.forget();
        std::fill(one.out[0].begin(), one.out[0].end(), 1e30F);
        one.give_all();
      }
      for (int i = 0; i < kMembers; ++i) {
        if (group[i].events_seen.has_failed(epoch.epoch)) {
          const auto failure = group[i].events_seen.failed(epoch.epoch);
          ASSERT_EQ(failure->fault, RingFault::kStopped) << failure->reason;
        }
        ASSERT_EQ(group[i].out[0][17], 1e30F);
      }
    }
    EXPECT_LE(descriptors_down_to(idle), idle);
    const auto epoch = group.epoch(16);
    ASSERT_TRUE(group.join(epoch));
    group.begin(epoch, 1, weights);
    group.expect_reduced(epoch, 1, weights);
  }
  EXPECT_EQ(descriptors_down_to(before), before);
  EXPECT_EQ(mappings(), 0U);
}

// ---- deaths ----

// Sixteen members in this process, and the seventeenth in its own.
struct WithChild {
  WithChild(DataPath way, std::size_t child_at)
      : gone(options(way, 16, 1)),
        back(options(way, 17, 2)),
        group(
            kMembers - 1,
            {.layout = kTwo,
             .way = way == DataPath::kTcp ? way : DataPath::kShared}),
        at(child_at) {}

  static ChildReplica::Options options(
      DataPath way, ReplicaId replica, int buckets) {
    return {
        .replica = replica,
        .layout = kTwo,
        .buckets = buckets,
        .memory = way == DataPath::kShared ? Memory::kShared : Memory::kOwn};
  }
  RingMembership epoch(std::uint64_t number, const ChildReplica& child) {
    auto epoch = group.epoch(number);
    epoch.members.insert(
        epoch.members.begin() + static_cast<std::ptrdiff_t>(at),
        child.member());
    return epoch;
  }
  void join(const RingMembership& epoch, ChildReplica& child) {
    child.join(epoch);
    for (int i = 0; i < group.size(); ++i) {
      group[i].ring.join(epoch);
    }
    for (int i = 0; i < group.size(); ++i) {
      ASSERT_TRUE(group[i].events_seen.joined(epoch.epoch));
      group[i].ring.begin({epoch.epoch, 1}, ones(kMembers));
    }
  }

  ChildReplica gone;
  ChildReplica back;  // A new start of the child.
  RingGroup group;
  std::size_t at;
};

class TreesKill : public testing::TestWithParam<DataPath> {};
INSTANTIATE_TEST_SUITE_P(Ways, TreesKill, kAllDataPaths, [](const auto& one) {
  return name_of(one.param);
});

void expect_lost(RingGroup& group, const Epoch& epoch, ReplicaId replica) {
  for (int i = 0; i < group.size(); ++i) {
    const auto failure = group[i].events_seen.failed(epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kLost) << failure->reason;
    EXPECT_EQ(failure->accused, replica) << failure->reason;
    EXPECT_FALSE(group[i].ring.progress().attempt.has_value());
  }
}

void expect_reduced_with(WithChild& all, const RingMembership& epoch) {
  const Floats theirs = random_buckets(kTwo, 1000 + 100 + 17);
  std::vector<const Floats*> in;
  for (const auto& member : epoch.members) {
    in.push_back(
        member.replica == 17 ? &theirs
                             : &all.group[static_cast<int>(member.replica)].in);
  }
  const Floats sum = reference(in, ones(kMembers));
  for (int i = 0; i < all.group.size(); ++i) {
    const auto digest = all.group[i].events_seen.reduced({epoch.epoch, 1});
    EXPECT_EQ(digest, digest_of(sum)) << "replica " << i;
    EXPECT_TRUE(same_bits(all.group[i].out, sum)) << "replica " << i;
  }
}

// The dead member is a leaf of both trees, has children in the first, or is the root of the second
// or of the first.
TEST_P(TreesKill, IsNoticedByAllRepeatedInARingAndInTreesWhenItIsBack) {
  for (const std::size_t at : {0U, 3U, 16U, 15U}) {
    SCOPED_TRACE(testing::Message() << "position " << at);
    WithChild all(GetParam(), at);
    // The child gives only the first bucket: all wait in the second.
    const auto first = all.epoch(1, all.gone);
    all.group.give_all();
    all.join(first, all.gone);
    const ReduceSchedule schedule(kTwo, {kMembers, 0, 1024});
    ASSERT_TRUE(wait_until([&] {
      return slices_done_of(all.group[0].ring) >= schedule.slices() / 2;
    }));
    const SteadyClock clock;
    const Instant killed = clock.now();
    all.gone.signal(SIGKILL);
    expect_lost(all.group, first.epoch, 16);
    EXPECT_LT(seconds(clock.now() - killed), 4.0);

    const auto second = all.group.epoch(2);
    ASSERT_TRUE(all.group.join(second));
    all.group.begin(second, 1, ones(kMembers - 1));
    all.group.expect_reduced(second, 1, ones(kMembers - 1));

    // No bucket is given again.
    const auto third = all.epoch(3, all.back);
    all.join(third, all.back);
    expect_reduced_with(all, third);
  }
}

TEST_P(TreesKill, AStoppedPeerHoldsNobodyWhoIsToldToStop) {
  WithChild all(GetParam(), 15);
  const auto first = all.epoch(1, all.gone);
  all.group.give_all();
  all.join(first, all.gone);
  all.gone.signal(SIGSTOP);
  const SteadyClock clock;
  const Instant begin = clock.now();
  for (int i = 0; i < all.group.size(); ++i) {
    all.group[i].ring.stop(first.epoch);
  }
  EXPECT_LT(seconds(clock.now() - begin), 3.0);
  const auto second = all.group.epoch(2);
  ASSERT_TRUE(all.group.join(second));
  all.group.begin(second, 1, ones(kMembers - 1));
  all.group.expect_reduced(second, 1, ones(kMembers - 1));
  all.gone.signal(SIGCONT);
}

// ---- absent members ----

TEST(TreesJoin, AMemberWithoutAProcessIsAccusedByAll) {
  RingGroup group(kMembers, {.layout = {10}});
  std::uint16_t nobody = 0;
  {
    nobody = std::move(net::listen_on("127.0.0.1")).value().port;
  }
  auto epoch = group.epoch(1);
  epoch.members.insert(epoch.members.begin() + 9, {99, 1, "127.0.0.1", nobody});
  for (int i = 0; i < kMembers; ++i) {
    group[i].ring.join(epoch);
  }
  for (int i = 0; i < kMembers; ++i) {
    const auto failure = group[i].events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kUnreachable);
    EXPECT_EQ(failure->accused, 99U) << failure->reason;
    EXPECT_THAT(failure->reason, HasSubstr("Connection refused"));
  }
}

TEST(TreesJoin, AMemberThatNeverAnswersIsAccusedByAll) {
  const auto silent = std::move(net::listen_on("127.0.0.1")).value();
  RingGroup group(
      kMembers - 1,
      {.layout = {10}, .connect_timeout = std::chrono::milliseconds(400)});
  auto epoch = group.epoch(1);
  epoch.members.insert(
      epoch.members.begin() + 8, {99, 1, "127.0.0.1", silent.port});
  for (int i = 0; i < group.size(); ++i) {
    group[i].ring.join(epoch);
  }
  for (int i = 0; i < group.size(); ++i) {
    const auto failure = group[i].events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kUnreachable);
    EXPECT_EQ(failure->accused, 99U) << failure->reason;
  }
}

}  // namespace
}  // namespace sherd::ft::ring
