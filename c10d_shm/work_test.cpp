// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/work.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <string>
#include <thread>
#include <vector>
#include <gtest/gtest.h>
#include "base/clock.h"

namespace sherd::c10d_shm {
namespace {

using namespace std::chrono_literals;

WorkPtr nothing_to_do() {
  return c10::make_intrusive<ShmWork>(
      WorkOptions{.type = c10d::OpType::BARRIER, .title = "nothing"},
      [] { return Status(); });
}

struct WaitLimits {
  int count;                       // Ends after this many operations,
  std::chrono::seconds enough;     // or after this time on a busy machine.
  std::chrono::seconds lost{120};  // A single operation never takes this long.
};

// Two threads wait for each operation, in addition to the queue's own. Counts the operations.
void wait_for_each(const WaitLimits& limits, std::atomic<int>& issued) {
  const auto queue = std::make_shared<WorkQueue>([] {});
  const SteadyClock clock;
  const Instant until = clock.now() + limits.enough;
  WorkPtr current;
  std::atomic<bool> ended{false};
  std::array<std::atomic<int>, 2> waited{};
  const auto follow = [&](std::atomic<int>& done) {
    for (int n = 1;; ++n) {
      while (issued.load(std::memory_order_acquire) < n) {
        if (ended.load(std::memory_order_acquire)) {
          return;
        }
        std::this_thread::yield();
      }
      current->wait();
      done.store(n, std::memory_order_release);
    }
  };
  std::jthread first([&] { follow(waited[0]); });
  std::jthread second([&] { follow(waited[1]); });
  for (int n = 1; n <= limits.count && clock.now() < until; ++n) {
    current = nothing_to_do();
    queue->issue(current, /*at_once=*/n % 3 == 0);
    issued.store(n, std::memory_order_release);
    for (const auto& done : waited) {
      while (done.load(std::memory_order_acquire) < n) {
        std::this_thread::yield();
      }
    }
  }
  ended.store(true, std::memory_order_release);
  queue->stop();
}

// A wait that is never woken would block the whole program, so the program is ended then.
void every_wait_returns(const WaitLimits& limits) {
  std::atomic<int> issued{0};
  auto all =
      std::async(std::launch::async, [&] { wait_for_each(limits, issued); });
  int seen = -1;
  while (all.wait_for(limits.lost) != std::future_status::ready) {
    const int now = issued.load();
    if (now == seen) {
      std::cerr << "wait " << now << " has not returned within "
                << limits.lost.count() << " s\n";
      std::_Exit(1);
    }
    seen = now;
  }
  EXPECT_GT(issued.load(), 0);
}

TEST(WorkQueue, EveryWaitReturns) {
  every_wait_returns({.count = 100'000, .enough = 10s});
}

// For `make soak`.
TEST(WorkQueue, DISABLED_EveryOfTwoMillionWaitsReturns) {
  every_wait_returns({.count = 2'000'000, .enough = 1800s});
}

// Requested before, after, or while the work is completed.
TEST(ShmWork, AFutureHasTheOutcomeWheneverItIsAskedFor) {
  for (int n = 0; n < 2'000; ++n) {
    const WorkPtr work = nothing_to_do();
    std::atomic<int> called{0};
    const auto ask = [&] {
      work->getFuture()->addCallback(
          [&](c10::ivalue::Future&) { called.fetch_add(1); });
    };
    if (n % 2 == 0) {
      ask();
    }
    {
      std::jthread asking(ask);
      work->complete_now();
    }
    ask();
    EXPECT_TRUE(work->getFuture()->completed());
    EXPECT_EQ(called.load(), n % 2 == 0 ? 3 : 2);
  }
}

TEST(ShmWork, AFutureHasTheErrorToo) {
  const auto queue = std::make_shared<WorkQueue>([] {});
  const auto work = c10::make_intrusive<ShmWork>(
      WorkOptions{.type = c10d::OpType::BARRIER, .title = "fails"},
      [] { return Status(ErrorCode::kAborted, "as told"); });
  queue->issue(work, /*at_once=*/true);
  EXPECT_TRUE(work->getFuture()->hasError());
  EXPECT_ANY_THROW(work->wait());
  queue->stop();
}

// A waits for the second operation while the queue's thread is in a callback of the first one,
// which returns only after the second one is done.
TEST(WorkQueue, WaitsGoOnWhileACallbackRuns) {
  const auto queue = std::make_shared<WorkQueue>([] {});
  std::promise<void> in_callback;
  std::promise<void> second_done;
  const WorkPtr first = nothing_to_do();
  first->getFuture()->addCallback([&](c10::ivalue::Future&) {
    in_callback.set_value();
    second_done.get_future().wait();
  });
  const WorkPtr second = nothing_to_do();

  queue->issue(first, /*at_once=*/false);
  in_callback.get_future().wait();
  queue->issue(second, /*at_once=*/true);
  second_done.set_value();

  EXPECT_TRUE(first->wait());
  queue->stop();
}

// The queue's own thread is in the callback, and nothing else carries out what that waits for. What
// was issued before the callback began is still carried out after it, so that ranks agree.
TEST(WorkQueue, ACallbackGetsTheWorkDoneThatItWaitsFor) {
  const auto queue = std::make_shared<WorkQueue>([] {});
  std::vector<std::string> done;
  const auto work = [&](const char* name) {
    return c10::make_intrusive<ShmWork>(
        WorkOptions{.type = c10d::OpType::BARRIER, .title = "named"},
        [&done, name] {
          done.emplace_back(name);
          return Status();
        });
  };
  const WorkPtr first = work("first");
  const WorkPtr within = work("of the first one's callback");
  const WorkPtr deeper = work("of that one's callback");
  const WorkPtr last = work("last");
  std::promise<void> in_callback;
  std::promise<void> last_issued;
  within->getFuture()->addCallback([&](c10::ivalue::Future&) {
    queue->issue(deeper, /*at_once=*/false);
    deeper->getFuture()->wait();
  });
  const auto outcome = first->getFuture()->then(
      [&](c10::ivalue::Future&) {
        in_callback.set_value();
        last_issued.get_future().wait();
        queue->issue(within, /*at_once=*/false);
        within->getFuture()->wait();
        return c10::IValue();
      },
      c10::NoneType::get());

  queue->issue(first, /*at_once=*/false);
  in_callback.get_future().wait();
  queue->issue(last, /*at_once=*/false);
  last_issued.set_value();

  const SteadyClock clock;
  const Instant until = clock.now() + 20s;
  while (!outcome->completed() && clock.now() < until) {
    std::this_thread::yield();
  }
  ASSERT_TRUE(outcome->completed());
  EXPECT_TRUE(last->wait());
  EXPECT_EQ(
      done,
      (std::vector<std::string>{
          "first", "of the first one's callback", "of that one's callback",
          "last"}));
  queue->stop();
}

// stop() returns only when no operation touches its tensors any more, even when a waiting thread
// carries one out.
TEST(WorkQueue, StopWaitsForAnOperationOfAWaitingThread) {
  std::promise<void> begun;
  std::promise<void> aborted;
  std::atomic<bool> touches_tensors{false};
  const auto queue = std::make_shared<WorkQueue>([&] { aborted.set_value(); });
  const auto work = c10::make_intrusive<ShmWork>(
      WorkOptions{.type = c10d::OpType::BARRIER, .title = "long"}, [&] {
        touches_tensors = true;
        begun.set_value();
        aborted.get_future().wait();
        touches_tensors = false;
        return Status(ErrorCode::kAborted, "aborted");
      });
  auto waiting = std::async(std::launch::async, [&] {
    queue->issue(work, /*at_once=*/true);
    work->wait();
  });
  begun.get_future().wait();

  queue->stop();

  EXPECT_FALSE(touches_tensors);
  EXPECT_ANY_THROW(waiting.get());
}

// Operations that never began fail, and threads that wait for them learn it.
TEST(WorkQueue, StopEndsWhatWaitsInLine) {
  std::promise<void> begun;
  std::promise<void> aborted;
  const auto queue = std::make_shared<WorkQueue>([&] { aborted.set_value(); });
  const auto first = c10::make_intrusive<ShmWork>(
      WorkOptions{.type = c10d::OpType::BARRIER, .title = "long"}, [&] {
        begun.set_value();
        aborted.get_future().wait();
        return Status();
      });
  const WorkPtr second = nothing_to_do();
  queue->issue(first, /*at_once=*/false);
  begun.get_future().wait();
  queue->issue(second, /*at_once=*/false);
  auto waiting = std::async(std::launch::async, [&] { second->wait(); });

  queue->stop();

  EXPECT_TRUE(first->wait());
  EXPECT_ANY_THROW(waiting.get());
  EXPECT_ANY_THROW(queue->issue(nothing_to_do(), false));
}

}  // namespace
}  // namespace sherd::c10d_shm
