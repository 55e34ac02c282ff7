// SPDX-License-Identifier: Apache-2.0
//
// What a member reports when its epoch ends: a sum that it has, and the right member to blame.
#include <chrono>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/ring/frame.h"
#include "ft/ring/ring_testing.h"

namespace sherd::ft::ring {
namespace {

// The next member no longer reads, so that the last frame stays here.
TEST(RingEnd, AMemberThatHasTheWholeSumTellsItThoughItsLastFrameIsNotSent) {
  const Layout layout = {std::int64_t{8} << 20U};
  const std::size_t half = (std::size_t{4} << 20U) * sizeof(float);
  RingGroup group(2, {.layout = layout, .chunk_bytes = half, .slots = 1});
  const std::size_t greeting = frame_of(Epoch{}, Handshake{}).size();
  Proxy proxy(
      group[1].ring.port(), {.hold_at = greeting + 2 * kHeaderBytes + half});
  auto epoch = group.epoch(1);
  group[1].ring.join(epoch);
  epoch.members[1].port = proxy.port();
  group[0].ring.join(epoch);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(group[i].events_seen.joined(epoch.epoch));
    group[i].give_all();
  }
  group.begin(epoch, 1, {1, 1});
  // There is only one slice.
  ASSERT_TRUE(
      wait_until([&] { return group[0].ring.progress().slices_done == 1; }));
  group[1].ring.stop(epoch.epoch);
  EXPECT_EQ(
      group[0].events_seen.reduced({epoch.epoch, 1}),
      digest_of(group.expected(group.epoch(1), {1, 1})));
  EXPECT_TRUE(group[0].events_seen.failed(epoch.epoch).has_value());
}

// The others may commit a step without this member, whose sum arrives together with the next step.
TEST(RingEnd, AMemberReportsItsSumThoughTheNextStepArrivesWithIt) {
  RingGroup group(2, {.layout = {1000}});
  const std::size_t greeting = frame_of(Epoch{}, Handshake{}).size();
  const std::size_t half = 500 * sizeof(float);
  Proxy proxy(
      group[1].ring.port(), {.hold_at = greeting + kHeaderBytes + half});
  auto epoch = group.epoch(1);
  group[1].ring.join(epoch);
  epoch.members[1].port = proxy.port();
  group[0].ring.join(epoch);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(group[i].events_seen.joined(epoch.epoch));
    group[i].give_all();
  }
  group.begin(epoch, 1, {1, 1});
  // The first member goes on alone to the next step and sends its part of that.
  ASSERT_TRUE(group[0].events_seen.reduced({epoch.epoch, 1}).has_value());
  group[0].ring.forget();
  group[0].give_all();
  group[0].ring.begin({epoch.epoch, 2}, {1, 1});
  ASSERT_TRUE(wait_until(
      [&] { return group[0].ring.counters().sent_bytes == 3 * half; }));
  proxy.release();
  ASSERT_TRUE(group[1].events_seen.reduced_unless_failed({epoch.epoch, 1}))
      << group[1].events_seen.failed(epoch.epoch)->reason;
  group[1].ring.forget();
  group[1].give_all();
  group[1].ring.begin({epoch.epoch, 2}, {1, 1});
  group.expect_reduced(epoch, 2, {1, 1});
  EXPECT_FALSE(group[1].events_seen.has_failed(epoch.epoch));
}

// The last member no longer reads, so that the second one cannot end the step although it has the
// whole sum.
TEST(RingEnd, AMemberThatCannotEndItsStepBeforeTheNextOneAccusesItself) {
  const std::int64_t third = std::int64_t{4} << 20U;
  const std::size_t bytes = static_cast<std::size_t>(third) * sizeof(float);
  RingGroup group(3, {.layout = {3 * third}, .chunk_bytes = bytes, .slots = 1});
  const std::size_t greeting = frame_of(Epoch{}, Handshake{}).size();
  Proxy proxy(
      group[2].ring.port(),
      {.hold_at = greeting + 4 * kHeaderBytes + 3 * bytes});
  auto epoch = group.epoch(1);
  for (const int i : {0, 2}) {
    group[i].ring.join(epoch);
  }
  epoch.members[2].port = proxy.port();
  group[1].ring.join(epoch);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(group[i].events_seen.joined(epoch.epoch));
    group[i].give_all();
  }
  group.begin(epoch, 1, {1, 1, 1});
  ASSERT_TRUE(group[0].events_seen.reduced({epoch.epoch, 1}).has_value());
  group[0].ring.forget();
  group[0].give_all();
  group[0].ring.begin({epoch.epoch, 2}, {1, 1, 1});
  const auto failure = group[1].events_seen.failed(epoch.epoch);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RingFault::kStopped) << failure->reason;
  EXPECT_EQ(failure->accused, 1U) << failure->reason;
  EXPECT_EQ(
      group[1].events_seen.reduced({epoch.epoch, 1}),
      digest_of(group.expected(group.epoch(1), {1, 1, 1})));
}

// The first member connects through a proxy that forwards nothing.
TEST(RingJoin, WhoIsNotAnsweredIsHeardBeforeWhoIsNotDialled) {
  RingGroup group(
      3, {.layout = {10}, .connect_timeout = std::chrono::milliseconds(200)});
  Proxy proxy(group[1].ring.port(), {.hold_at = 0});
  auto epoch = group.epoch(1);
  for (const int i : {1, 2}) {
    group[i].ring.join(epoch);
  }
  epoch.members[1].port = proxy.port();
  group[0].ring.join(epoch);
  for (int i = 0; i < 3; ++i) {
    const auto failure = group[i].events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kUnreachable);
    EXPECT_EQ(failure->accused, 1U) << failure->reason;
    EXPECT_EQ(failure->reporter, 0U) << failure->reason;
  }
}

}  // namespace
}  // namespace sherd::ft::ring
