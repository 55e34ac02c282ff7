// SPDX-License-Identifier: Apache-2.0
#include "net/loop.h"

#include <atomic>
#include <optional>
#include <thread>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "support/error_of.h"

namespace sherd::net {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;

TEST(Loop, CallsPostedFunctionsInOrderAndNeverInsidePost) {
  Loop loop;
  std::vector<int> order;
  loop.post([&] {
    loop.post([&] {
      order.push_back(3);
      loop.stop();
    });
    order.push_back(1);
  });
  loop.post([&] { order.push_back(2); });
  EXPECT_TRUE(order.empty());
  loop.run();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(Loop, TakesFunctionsFromAllThreads) {
  constexpr int kThreads = 4;
  constexpr int kEach = 1000;
  Loop loop;
  int called = 0;  // Used in the loop's thread only.
  std::vector<std::jthread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kEach; ++k) {
        loop.post([&] {
          if (++called == kThreads * kEach) {
            loop.stop();
          }
        });
      }
    });
  }
  loop.run();
  EXPECT_EQ(called, kThreads * kEach);
}

TEST(Loop, KnowsItsThread) {
  Loop loop;
  EXPECT_TRUE(loop.in_loop()) << "nobody runs it";
  std::atomic<bool> outside = true;
  loop.post([&] {
    EXPECT_TRUE(loop.in_loop());
    std::jthread([&] { outside = loop.in_loop(); }).join();
    loop.stop();
  });
  loop.run();
  EXPECT_FALSE(outside);
  EXPECT_TRUE(loop.in_loop());
}

TEST(Loop, MayBeStoppedBeforeItRunsAndRunAgain) {
  Loop loop;
  int called = 0;
  loop.post([&] { ++called; });
  loop.stop();
  loop.run();
  EXPECT_EQ(called, 0);
  loop.post([&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(called, 1);
}

TEST(Loop, LetsExceptionsOutAndGoesOn) {
  Loop loop;
  loop.post([] { throw Error("of a function"); });
  loop.post([&] { loop.stop(); });
  EXPECT_EQ(test::error_of([&] { loop.run(); }), "of a function");
  loop.run();
}

TEST(Loop, DropsWhatIsToComeWhenItIsDestroyed) {
  auto owned = std::make_shared<int>(1);
  Timer timer;
  {
    Loop loop;
    loop.post([owned] { FAIL(); });
    timer = loop.after(0ms, [owned] { FAIL(); });
    timer.cancel();
  }
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(Timer, IsCalledOnceNotBeforeItsTime) {
  Loop loop;
  const Instant begin = loop.now();
  Instant called{0};
  Timer timer = loop.after(20ms, [&] {
    called = loop.now();
    EXPECT_FALSE(timer.pending());
    loop.stop();
  });
  EXPECT_TRUE(timer.pending());
  loop.run();
  EXPECT_GE(called - begin, 20ms);
}

TEST(Timer, AreCalledInOrderOfTheirTimes) {
  Loop loop;
  std::vector<int> order;
  Timer third;
  Timer first;
  Timer second;
  Instant from{};
  // Repeated if the thread was delayed in between: then the timer made first is due first.
  do {
    from = loop.now();
    third = loop.after(30ms, [&] {
      order.push_back(3);
      loop.stop();
    });
    first = loop.after(1ms, [&] { order.push_back(1); });
    second = loop.after(15ms, [&] { order.push_back(2); });
  } while (loop.now() - from > 10ms);
  loop.run();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(Timer, IsNotCalledOnceCancelledReplacedOrDestroyed) {
  Loop loop;
  Timer cancelled = loop.after(1ms, [] { FAIL(); });
  Timer replaced = loop.after(1ms, [] { FAIL(); });
  std::optional<Timer> destroyed = loop.after(1ms, [] { FAIL(); });
  // All are due when this one function cancels them.
  loop.post([&] {
    const Instant due = loop.now() + 5ms;
    while (loop.now() < due) {
    }
    cancelled.cancel();
    replaced = Timer();
    destroyed.reset();
  });
  const Timer end = loop.after(20ms, [&] { loop.stop(); });
  loop.run();
  EXPECT_FALSE(cancelled.pending());
}

TEST(Timer, OfNoDelayIsCalledInItsTurnUnlessItIsCancelled) {
  Loop loop;
  std::vector<int> order;
  loop.post([&] { order.push_back(1); });
  const Timer at_once = loop.after(0ms, [&] { order.push_back(2); });
  Timer cancelled = loop.after(0ms, [] { FAIL(); });
  loop.post([&] {
    order.push_back(3);
    loop.stop();
  });
  cancelled.cancel();
  loop.run();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
  EXPECT_FALSE(at_once.pending());
}

TEST(Timer, MayReplaceItselfInItsOwnFunction) {
  Loop loop;
  int ticks = 0;
  Timer timer;
  std::function<void()> tick = [&] {
    if (++ticks == 5) {
      loop.stop();
    } else {
      timer = loop.after(1ms, tick);
    }
  };
  timer = loop.after(0ms, tick);
  loop.run();
  EXPECT_EQ(ticks, 5);
}

}  // namespace
}  // namespace sherd::net
