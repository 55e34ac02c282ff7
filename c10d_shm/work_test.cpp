// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/work.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <thread>
#include <gtest/gtest.h>

namespace sherd::c10d_shm {
namespace {

using namespace std::chrono_literals;

WorkPtr nothing_to_do() {
  return c10::make_intrusive<ShmWork>(
      WorkOptions{.type = c10d::OpType::BARRIER, .title = "nothing"},
      [] { return Status(); });
}

// Two threads wait for each of `count` operations, beside the queue's own.
void wait_for_each(int count) {
  const auto queue = std::make_shared<WorkQueue>([] {});
  WorkPtr current;
  std::atomic<int> issued{0};
  std::array<std::atomic<int>, 2> waited{};
  const auto follow = [&](std::atomic<int>& done) {
    for (int n = 1; n <= count; ++n) {
      while (issued.load(std::memory_order_acquire) < n) {
        std::this_thread::yield();
      }
      current->wait();
      done.store(n, std::memory_order_release);
    }
  };
  std::jthread first([&] { follow(waited[0]); });
  std::jthread second([&] { follow(waited[1]); });
  for (int n = 1; n <= count; ++n) {
    current = nothing_to_do();
    queue->issue(current, /*at_once=*/n % 3 == 0);
    issued.store(n, std::memory_order_release);
    for (const auto& done : waited) {
      while (done.load(std::memory_order_acquire) < n) {
        std::this_thread::yield();
      }
    }
  }
  queue->stop();
}

// A wait that nobody wakes would hold up the whole program, so that ends then.
void wait_for_each_within(int count, std::chrono::seconds limit) {
  auto all = std::async(std::launch::async, [&] { wait_for_each(count); });
  if (all.wait_for(limit) != std::future_status::ready) {
    std::cerr << "a wait has not returned within " << limit.count() << " s\n";
    std::_Exit(1);
  }
}

TEST(WorkQueue, EveryWaitReturns) { wait_for_each_within(100'000, 120s); }

// For `make soak`.
TEST(WorkQueue, DISABLED_EveryOfTwoMillionWaitsReturns) {
  wait_for_each_within(2'000'000, 1800s);
}

// A waits for the second operation while the queue's thread is in a callback of
// the first one, which returns only after the second one is done.
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

// stop() returns only when no operation touches its tensors any more, also when
// a waiting thread carries one out.
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

// Those that never began fail, and who waits for them hears of it.
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
