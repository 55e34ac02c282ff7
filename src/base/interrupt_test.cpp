// SPDX-License-Identifier: Apache-2.0
#include "base/interrupt.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <gtest/gtest.h>
#include "base/worker_thread.h"

namespace sherd {
namespace {

std::atomic<int> calls = 0;
std::atomic<bool> wish = false;

struct Interrupts : ::testing::Test {
  Interrupts() {
    calls = 0;
    wish = false;
    set_interrupt_check([] {
      ++calls;
      return wish.load();
    });
  }
  ~Interrupts() override {
    set_interrupt_check(nullptr);
    set_error_translator(nullptr);
  }
};

TEST_F(Interrupts, PollsFollowTheCheckAndForgetWhenTheWaitEnds) {
  {
    InterruptibleWait wait;
    EXPECT_TRUE(wait.poll().ok());
    EXPECT_EQ(calls, 1);
    wish = true;
    while (wait.poll().ok()) {
    }
    EXPECT_EQ(wait.poll().code(), ErrorCode::kAborted);
    InterruptibleWait other;  // That of a thread that does the waiting.
    EXPECT_FALSE(other.poll().ok());
  }
  wish = false;
  EXPECT_FALSE(InterruptibleWait::under_way());
  InterruptibleWait next;
  EXPECT_TRUE(next.poll().ok());
}

TEST_F(Interrupts, NoParameterIsUsedInsideTheCheck) {
  static std::string told;
  told.clear();
  set_interrupt_check([] {
    try {
      check_may_use_parameters("aten::mm");
    } catch (const Error& error) {
      told = error.what();
    }
    return !in_interrupt_check();
  });
  InterruptibleWait wait;
  EXPECT_TRUE(wait.poll().ok());
  EXPECT_NE(told.find("aten::mm uses a parameter"), std::string::npos) << told;
  EXPECT_FALSE(in_interrupt_check());
  check_may_use_parameters("aten::mm");
}

TEST_F(Interrupts, NobodyIsAskedWithoutACheck) {
  set_interrupt_check(nullptr);
  InterruptibleWait wait;
  EXPECT_FALSE(InterruptibleWait::possible());
  EXPECT_TRUE(wait.poll().ok());
}

TEST_F(Interrupts, WhoWaitsForAThreadInterruptsWhatThatWaitsFor) {
  // Python's handlers run on one thread only, which waits for another one here.
  static const auto asked = std::this_thread::get_id();
  set_interrupt_check([] { return std::this_thread::get_id() == asked; });
  WorkerThread worker("test");
  const auto job = worker.post([] {
    InterruptibleWait wait;
    Status status;
    while (status.ok()) {
      status = wait.poll();
    }
    return status;
  });
  EXPECT_EQ(worker.wait(job).code(), ErrorCode::kAborted);
}

TEST_F(Interrupts, AWishIsNotLostWhenTheJobSucceedsAllTheSame) {
  // The check says so only once: afterwards the program believes that its wait is over.
  set_interrupt_check([] { return calls++ == 0; });
  WorkerThread worker("test");
  const auto ends_after_the_check = [] {
    while (calls == 0) {
      std::this_thread::yield();
    }
    return Status();
  };
  const auto interrupted = worker.wait(worker.post(ends_after_the_check));
  EXPECT_EQ(interrupted.code(), ErrorCode::kAborted);
  EXPECT_TRUE(worker.failure().ok());
  EXPECT_TRUE(worker.wait(worker.post(ends_after_the_check)).ok());
}

TEST_F(Interrupts, ErrorsGoThroughTheTranslator) {
  const auto text_of = [] {
    try {
      try {
        throw Error("one", ErrorCode::kPeerLost);
      } catch (const Error& error) {
        rethrow_translated(error);
      }
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(text_of(), "one");
  set_error_translator([](const Error& error) {
    if (error.code() == ErrorCode::kPeerLost) {
      throw std::logic_error(std::string("another than ") + error.what());
    }
  });
  EXPECT_EQ(text_of(), "another than one");
}

}  // namespace
}  // namespace sherd
