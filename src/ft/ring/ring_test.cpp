// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "ft/ring/ring_testing.h"

namespace sherd::ft::ring {
namespace {

using testing::HasSubstr;

const Layout kRagged = {1000, 0, 1, 2, 5000, 6, 40000, 3};

class RingOf : public testing::TestWithParam<std::tuple<int, DataPath>> {
 protected:
  static int members() { return std::get<0>(GetParam()); }
  static DataPath way() { return std::get<1>(GetParam()); }
};

TEST_P(RingOf, AllMembersGetTheBitsThatOneProcessGets) {
  const int members = RingOf::members();
  RingGroup group(members, {.layout = kRagged, .way = way()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  std::vector<double> weights;
  for (int i = 0; i < members; ++i) {
    weights.push_back(1 + i % 3);
    group[i].give_all();
  }
  group.begin(epoch, 1, weights);
  group.expect_reduced(epoch, 1, weights);
}

TEST_P(RingOf, MembersOfWeightZeroFollowWithoutBeingRead) {
  const int members = RingOf::members();
  RingGroup group(members, {.layout = kRagged, .way = way()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  std::vector<double> weights;
  for (int i = 0; i < members; ++i) {
    weights.push_back(i % 2 == 0 ? 4.0 : 0.0);
    for (std::size_t b = 0; b < kRagged.size(); ++b) {
      // An unreadable pointer, and one to numbers that must not count.
      group[i].ring.give(
          static_cast<int>(b),
          i % 4 == 1 ? reinterpret_cast<const float*>(std::uintptr_t{8})
                     : group[i].in[b].data(),
          group[i].out[b].data());
    }
  }
  group.begin(epoch, 1, weights);
  group.expect_reduced(epoch, 1, weights);
}

TEST_P(RingOf, BucketsMayComeInAnyOrderBeforeAndAfterTheBegin) {
  const int members = RingOf::members();
  RingGroup group(members, {.layout = kRagged, .way = way()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  const std::vector<double> weights(static_cast<std::size_t>(members), 1.0);
  std::mt19937_64 random(17);
  for (int i = 0; i < members; ++i) {
    std::vector<int> order;
    for (int b = 0; b < static_cast<int>(kRagged.size()); ++b) {
      order.push_back(b);
    }
    std::shuffle(order.begin(), order.end(), random);
    for (std::size_t k = 0; k < order.size(); ++k) {
      if (k == random() % order.size() || k + 1 == order.size()) {
        group[i].ring.begin({epoch.epoch, 1}, weights);
        for (; k < order.size(); ++k) {
          const auto b = static_cast<std::size_t>(order[k]);
          group[i].ring.give(
              order[k], group[i].in[b].data(), group[i].out[b].data());
        }
        break;
      }
      const auto b = static_cast<std::size_t>(order[k]);
      group[i].ring.give(
          order[k], group[i].in[b].data(), group[i].out[b].data());
    }
  }
  group.expect_reduced(epoch, 1, weights);
}

TEST_P(RingOf, StepsFollowEachOtherUnderOneEpoch) {
  const int members = RingOf::members();
  RingGroup group(members, {.layout = kRagged, .way = way()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  const std::vector<double> weights(static_cast<std::size_t>(members), 2.0);
  for (std::int64_t step = 1; step <= 5; ++step) {
    for (int i = 0; i < members; ++i) {
      group[i].in =
          random_buckets(kRagged, static_cast<std::uint64_t>(step * 100 + i));
      group[i].give_all();
    }
    group.begin(epoch, step, weights);
    group.expect_reduced(epoch, step, weights);
    for (int i = 0; i < members; ++i) {
      group[i].ring.forget();
    }
  }
  EXPECT_EQ(group[0].ring.counters().reductions, 5U);
  EXPECT_EQ(group[0].ring.counters().resent_bytes, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    Members,
    RingOf,
    testing::Combine(testing::Values(1, 2, 3, 4, 7, 17, 24), kAllDataPaths),
    [](const auto& one) {
      return str(
          std::get<0>(one.param), "Over", name_of(std::get<1>(one.param)));
    });

class RingBy : public testing::TestWithParam<DataPath> {};
INSTANTIATE_TEST_SUITE_P(Ways, RingBy, kAllDataPaths, [](const auto& one) {
  return name_of(one.param);
});

TEST_P(RingBy, ChunksAndSlotsLeaveNoTraceInTheBits) {
  const std::vector<double> weights = {1, 2, 5};
  for (const std::size_t chunk : {4U, 64U, 1U << 20U}) {
    for (const int slots : {1, 3, 64}) {
      RingGroup group(
          3,
          {.layout = {1000, 7},
           .chunk_bytes = chunk,
           .slots = slots,
           .way = GetParam()});
      const auto epoch = group.epoch(1);
      ASSERT_TRUE(group.join(epoch));
      group.give_all();
      group.begin(epoch, 1, weights);
      group.expect_reduced(epoch, 1, weights);
    }
  }
}

TEST_P(RingBy, ALayoutWithoutElementsIsReducedAtOnce) {
  RingGroup group(3, {.layout = {0, 0}, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  group.begin(epoch, 1, {1, 1, 1});
  group.expect_reduced(epoch, 1, {1, 1, 1});
}

TEST_P(RingBy, AMemberThatBeginsLateIsWaitedFor) {
  RingGroup group(3, {.layout = {100000}, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  group.give_all();
  for (const int i : {0, 2}) {
    group[i].ring.begin({epoch.epoch, 1}, {1, 1, 1});
  }
  // Bytes of the other members have arrived and wait.
  ASSERT_TRUE(
      wait_until([&] { return group[1].ring.counters().received_bytes > 0; }));
  group[1].ring.begin({epoch.epoch, 1}, {1, 1, 1});
  group.expect_reduced(epoch, 1, {1, 1, 1});
}

TEST_P(RingBy, AReductionIsRepeatedWithAMemberLessAndNothingGivenAgain) {
  RingGroup group(3, {.layout = {200000, 10}, .way = GetParam()});
  const auto first = group.epoch(1);
  ASSERT_TRUE(group.join(first));
  const Floats before = group[0].in;
  for (const int i : {0, 1}) {
    group[i].give_all();
  }
  // Replica 2 never gives its bucket, and leaves.
  group.begin(first, 7, {1, 2, 3});
  for (const int i : {0, 1}) {  // They have begun.
    ASSERT_TRUE(wait_until([&] {
      const auto counters = group[i].ring.counters();
      return counters.sent_bytes + counters.shared_bytes > 0;
    }));
  }
  group[2].ring.stop(first.epoch);
  for (const int i : {0, 1}) {
    const auto failure = group[i].events_seen.failed(first.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kStopped);
    EXPECT_EQ(failure->accused, 2U);
    EXPECT_THAT(failure->reason, HasSubstr("replica 2 has stopped epoch 1.1"));
  }
  const auto second = group.epoch(2, {0, 1});
  ASSERT_TRUE(group.join(second));
  group.begin(second, 7, {1, 2});
  group.expect_reduced(second, 7, {1, 2});
  EXPECT_TRUE(same_bits(group[0].in, before));
  EXPECT_GT(group[0].ring.counters().resent_bytes, 0U);
}

TEST_P(RingBy, ANewEpochIsJoinedWhileTheOldOneReduces) {
  RingGroup group(3, {.layout = {50000, 50000}, .way = GetParam()});
  const auto old = group.epoch(1, {0, 1});
  ASSERT_TRUE(group.join(old));
  group.begin(old, 1, {1, 1});
  for (const int i : {0, 1}) {
    group[i].ring.give(0, group[i].in[0].data(), group[i].out[0].data());
  }
  const auto planned = group.epoch(2);
  ASSERT_TRUE(group.join(planned));
  for (const int i : {0, 1}) {
    group[i].ring.give(1, group[i].in[1].data(), group[i].out[1].data());
  }
  group.expect_reduced(old, 1, {1, 1});
  for (const int i : {0, 1, 2}) {
    group[i].ring.forget();
    group[i].give_all();
  }
  group.begin(planned, 2, {1, 1, 0});
  group.expect_reduced(planned, 2, {1, 1, 0});
}

TEST_P(RingBy, WhoHasTheSumMayGoOnWithoutHarmToWhoHasNot) {
  std::mt19937_64 random(23);
  RingGroup group(4, {.layout = {30000}, .way = GetParam()});
  std::uint64_t number = 1;
  auto epoch = group.epoch(number);
  ASSERT_TRUE(group.join(epoch));
  for (std::int64_t step = 1; step <= 30; ++step) {
    group.give_all();
    group.begin(epoch, step, {1, 1, 1, 1});
    // The first member that has the sum leaves at once, while the others have almost finished.
    const int leader = static_cast<int>(random() % 4);
    ASSERT_TRUE(
        group[leader].events_seen.reduced({epoch.epoch, step}).has_value());
    group[leader].ring.stop(epoch.epoch);
    group.expect_reduced(epoch, step, {1, 1, 1, 1});
    for (int i = 0; i < 4; ++i) {
      group[i].ring.stop(epoch.epoch);
      group[i].ring.forget();
    }
    epoch = group.epoch(++number);
    ASSERT_TRUE(group.join(epoch));
  }
}

TEST_P(RingBy, TheNewestOfSeveralPendingEpochsCounts) {
  RingGroup group(2, {.layout = {100}, .way = GetParam()});
  const auto lonely = group.epoch(2);  // Only replica 0 hears of it.
  const auto first = group.epoch(1);
  ASSERT_TRUE(group.join(first));
  group[0].ring.join(lonely);
  const auto newest = group.epoch(3);
  ASSERT_TRUE(group.join(newest));
  group[0].give_all();
  group[1].give_all();
  group.begin(newest, 1, {1, 1});
  group.expect_reduced(newest, 1, {1, 1});
  EXPECT_FALSE(group[0].events_seen.has_failed(lonely.epoch));
}

TEST(Ring, NoWeightAtAllFailsTheAttemptAtEachMember) {
  RingGroup group(2, {.layout = {10}});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  group.begin(epoch, 1, {0, 0});
  for (int i = 0; i < 2; ++i) {
    const auto failure = group[i].events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kWeights);
  }
}

TEST_P(RingBy, ProgressNamesWhoIsWaitedFor) {
  RingGroup group(2, {.layout = {10}, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  group[0].give_all();
  group.begin(epoch, 1, {1, 1});
  ASSERT_TRUE(
      wait_until([&] { return group[1].ring.progress().attempt.has_value(); }));
  EXPECT_TRUE(
      wait_until([&] { return group[0].ring.progress().waits_for == 1U; }));
  EXPECT_EQ(group[1].ring.progress().waits_for, std::nullopt);
  EXPECT_EQ(group[1].ring.progress().place->slices, 1);
}

RingLink link_to(const std::vector<RingLink>& links, int replica) {
  for (const auto& link : links) {
    if (link.peer == static_cast<ReplicaId>(replica)) {
      return link;
    }
  }
  ADD_FAILURE() << "no link to replica " << replica;
  return {};
}

// If the counts differ while all members stand still, a link is dead.
TEST_P(RingBy, WhatWentToTheNextMemberIsCountedThereAsWhatCame) {
  RingGroup group(3, {.layout = {30000, 10}, .way = GetParam()});
  EXPECT_FALSE(group[0].ring.progress().place.has_value());
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  group.give_all();
  group.begin(epoch, 1, {1, 1, 1});
  group.expect_reduced(epoch, 1, {1, 1, 1});
  for (int i = 0; i < 3; ++i) {
    const int next = (i + 1) % 3;
    const auto here = group[i].ring.progress().place;
    const auto there = group[next].ring.progress().place;
    ASSERT_TRUE(here.has_value() && there.has_value());
    EXPECT_EQ(here->epoch, epoch.epoch);
    const RingLink to = link_to(here->links, next);
    const RingLink from = link_to(there->links, i);
    EXPECT_GT(to.frames_out, 0U);
    EXPECT_EQ(to.frames_out, from.frames_in);
    EXPECT_EQ(to.frames_in, 0U);
  }
  group[0].ring.stop(epoch.epoch);
  EXPECT_FALSE(group[0].ring.progress().place.has_value());
}

// If neighbours read memory in place, nothing is measured.
TEST_P(RingBy, TellsHowFastDataComeFromTheMemberBefore) {
  RingGroup group(
      3, {.layout = {4'000'000}, .chunk_bytes = 1U << 18U, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  EXPECT_TRUE(group[0].ring.progress().speeds.empty());
  group.give_all();
  group.begin(epoch, 1, {1, 1, 1});
  group.expect_reduced(epoch, 1, {1, 1, 1});
  for (int i = 0; i < 3; ++i) {
    const auto speeds = group[i].ring.progress().speeds;
    if (GetParam() == DataPath::kShared) {
      EXPECT_TRUE(speeds.empty());
    } else if (GetParam() == DataPath::kTcp) {
      ASSERT_EQ(speeds.size(), 1U);
      EXPECT_EQ(speeds[0].peer, static_cast<ReplicaId>((i + 2) % 3));
      EXPECT_GT(speeds[0].bytes_per_s, 0U);
    }
  }
}

TEST(Ring, AnEventMayCallTheRingAndThrow) {
  // The event that ends the first epoch joins the next one.
  RingGroup group(2, {.layout = {10}});
  const auto first = group.epoch(1);
  ASSERT_TRUE(group.join(first));
  RingOptions options;
  options.replica = 7;
  Ring* self = nullptr;
  EventRecorder events_seen;
  RingEvents events = events_seen.events();
  auto joined = events.joined;
  events.joined = [&, joined](Epoch epoch) {
    self->stop(epoch);
    self->forget();
    joined(epoch);
    throw std::runtime_error("on purpose, by a test");
  };
  Ring ring(options, events);
  self = &ring;
  ring.set_run(kTestRun);
  ring.join({{1, 1}, {{7, 0, "127.0.0.1", ring.port()}}});
  ASSERT_TRUE(events_seen.joined({1, 1}));
  ring.join({{1, 2}, {{7, 0, "127.0.0.1", ring.port()}}});
  EXPECT_TRUE(events_seen.joined({1, 2}));
}

TEST(Ring, CallersMistakesAreNamed) {
  RingGroup group(2, {.layout = {10}});
  auto& ring = group[0].ring;
  const auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  };
  const auto epoch = group.epoch(1);
  EXPECT_THAT(
      message([&] { ring.give(1, nullptr, nullptr); }),
      HasSubstr("expected a bucket of 1, found 1"));
  EXPECT_THAT(
      message([&] { ring.give(0, nullptr, nullptr); }),
      HasSubstr("expected a place for the sum of bucket 0"));
  EXPECT_THAT(
      message([&] { ring.begin({epoch.epoch, 1}, {1, 1}); }),
      HasSubstr("expected an epoch that was joined"));
  EXPECT_THAT(
      message([&] { ring.join(group.epoch(1, {1})); }),
      HasSubstr("expected replica 0 among the members"));
  EXPECT_THAT(
      message([&] { ring.join(group.epoch(1, {0, 1, 1})); }),
      HasSubstr("found replica 1 twice"));
  ASSERT_TRUE(group.join(epoch));
  EXPECT_THAT(
      message([&] { ring.join(epoch); }),
      HasSubstr("expected an epoch after epoch 1.1"));
  EXPECT_THAT(
      message([&] { ring.begin({epoch.epoch, 1}, {1}); }),
      HasSubstr("expected 2 weights"));
  EXPECT_THAT(
      message([&] { ring.begin({epoch.epoch, 1}, {1, -1}); }),
      HasSubstr("expected weights of 0 and more"));
  RingOptions odd;
  odd.chunk_bytes = 6;
  EXPECT_THAT(
      message([&] { Ring(odd, {}); }), HasSubstr("a multiple of 4, found 6"));
  EXPECT_THAT(
      message([&] { Ring({.elements = {3, -1}}, {}); }),
      HasSubstr("expected sizes of buckets, found -1"));
}

}  // namespace
}  // namespace sherd::ft::ring
