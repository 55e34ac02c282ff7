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
