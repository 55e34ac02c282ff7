// SPDX-License-Identifier: Apache-2.0
#include "sim/event_queue.h"

#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::sim {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

TEST(EventQueue, RunsEventsByTimeAndThoseOfOneInstantInTheirOrder) {
  EventQueue queue;
  std::vector<int> ran;
  queue.add(seconds(2), [&] { ran.push_back(3); });
  queue.add(seconds(1), [&] { ran.push_back(1); });
  queue.add(seconds(1), [&] {
    ran.push_back(2);
    queue.add(seconds(0), [&] {
      EXPECT_EQ(queue.now(), Instant(seconds(1)));  // Time does not go back.
      ran.push_back(4);
    });
  });
  while (queue.next()) {
    queue.run_next();
  }
  EXPECT_THAT(ran, ElementsAre(1, 2, 4, 3));
  EXPECT_EQ(queue.now(), Instant(seconds(2)));
}

TEST(EventQueue, KnowsWhenSomethingComesFromOutside) {
  EventQueue queue;
  queue.add(seconds(1), [] {});
  EXPECT_EQ(queue.next_outside(), std::nullopt);
  queue.add_outside(seconds(5), [] {});
  queue.add_outside(seconds(3), [] {});
  EXPECT_EQ(queue.next_outside(), Instant(seconds(3)));
  queue.run_next();
  queue.run_next();
  EXPECT_EQ(queue.next_outside(), Instant(seconds(5)));
}

}  // namespace
}  // namespace sherd::sim
