// SPDX-License-Identifier: Apache-2.0
#include "support/checking_device/access_history.h"

#include <gtest/gtest.h>

namespace sherd::test {
namespace {

// Queues whose work is given one piece after another.
class Queues {
 public:
  // Returns the earlier access with which this one conflicts.
  std::optional<Access> use(
      QueueId queue,
      AccessKind kind,
      std::uintptr_t begin,
      std::uintptr_t end) {
    auto& now = clocks_[queue];
    const auto number = now.tick(queue);
    return history.note({begin, end}, {kind, "", queue, number}, now);
  }
  bool ordered(
      QueueId queue,
      AccessKind kind,
      std::uintptr_t begin,
      std::uintptr_t end) {
    return !use(queue, kind, begin, end).has_value();
  }
  void wait(QueueId queue, QueueId for_queue) {
    clocks_[queue].merge(clocks_[for_queue]);
  }

  AccessHistory history;

 private:
  std::map<QueueId, VectorClock> clocks_;
};

constexpr auto kRead = AccessKind::kRead;
constexpr auto kWrite = AccessKind::kWrite;
constexpr auto kFree = AccessKind::kFree;

TEST(AccessHistory, OneQueueIsAlwaysOrdered) {
  Queues queues;
  for (const auto kind : {kWrite, kRead, kWrite, kWrite, kRead, kFree}) {
    EXPECT_TRUE(queues.ordered(1, kind, 0, 100));
  }
}

TEST(AccessHistory, ReadsNeedNoOrderAmongEachOther) {
  Queues queues;
  for (const QueueId queue : {1, 2, 3}) {
    EXPECT_TRUE(queues.ordered(queue, kRead, 0, 8));
  }
}

TEST(AccessHistory, FindsWhatNoWaitOrders) {
  for (const auto& [first, second] :
       {std::pair(kWrite, kRead),
        {kWrite, kWrite},
        {kRead, kWrite},
        {kRead, kFree},
        {kWrite, kFree}}) {
    Queues queues;
    EXPECT_TRUE(queues.ordered(1, first, 0, 8));
    const auto found = queues.use(2, second, 0, 8);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->queue, 1);
    EXPECT_EQ(found->kind, first);
  }
}

TEST(AccessHistory, AWaitOrdersWhatWasDoneBeforeItOnly) {
  Queues queues;
  EXPECT_TRUE(queues.ordered(1, kWrite, 0, 8));
  queues.wait(2, 1);
  EXPECT_TRUE(queues.ordered(2, kRead, 0, 8));
  EXPECT_FALSE(
      queues.ordered(1, kWrite, 0, 8));  // The reader was not waited for.
  EXPECT_FALSE(queues.ordered(2, kRead, 0, 8));  // Nor was the second write.
}

TEST(AccessHistory, OrderPassesThroughAThirdQueue) {
  Queues queues;
  EXPECT_TRUE(queues.ordered(1, kWrite, 0, 8));
  queues.wait(2, 1);
  queues.wait(3, 2);
  EXPECT_TRUE(queues.ordered(3, kWrite, 0, 8));
}

TEST(AccessHistory, OnlyOverlappingBytesConflict) {
  Queues queues;
  EXPECT_TRUE(queues.ordered(1, kWrite, 100, 200));
  EXPECT_TRUE(queues.ordered(2, kWrite, 0, 100));
  EXPECT_TRUE(queues.ordered(2, kWrite, 200, 300));
  EXPECT_TRUE(queues.ordered(2, kWrite, 150, 150));  // No byte.
  EXPECT_FALSE(queues.ordered(2, kRead, 199, 300));
  EXPECT_FALSE(queues.ordered(3, kRead, 0, 101));
}

TEST(AccessHistory, EachReaderMustBeWaitedFor) {
  Queues queues;
  EXPECT_TRUE(queues.ordered(1, kRead, 0, 8));
  EXPECT_TRUE(queues.ordered(2, kRead, 4, 12));
  queues.wait(3, 1);
  EXPECT_TRUE(queues.ordered(3, kWrite, 0, 4));
  EXPECT_FALSE(queues.ordered(3, kWrite, 0, 8));
  EXPECT_TRUE(queues.ordered(3, kWrite, 0, 8));  // Each conflict is found once.
}

TEST(AccessHistory, WhatWasFreedIsNobodys) {
  Queues queues;
  EXPECT_TRUE(queues.ordered(1, kFree, 0, 8));
  EXPECT_FALSE(queues.ordered(1, kRead, 0, 8));
  queues.history.forget({0, 8});
  EXPECT_TRUE(queues.ordered(2, kWrite, 0, 8));
}

TEST(AccessHistory, ForgettingLeavesTheNeighboursAlone) {
  Queues queues;
  EXPECT_TRUE(queues.ordered(1, kWrite, 0, 30));
  queues.history.forget({10, 20});
  EXPECT_TRUE(queues.ordered(2, kRead, 10, 20));
  EXPECT_FALSE(queues.ordered(2, kRead, 9, 10));
  EXPECT_FALSE(queues.ordered(2, kRead, 20, 21));
}

}  // namespace
}  // namespace sherd::test
