// SPDX-License-Identifier: Apache-2.0
#include "train/signal_request.h"

#include <unistd.h>
#include <chrono>
#include <csignal>
#include <gtest/gtest.h>
#include "base/clock.h"

namespace sherd::tools {
namespace {

// Gets interrupts, two at least, until the time has passed; then exits with the request.
[[noreturn]] void be_interrupted(Duration time) {
  const SteadyClock clock;
  const auto end = clock.now() + time;
  install_signal_handlers(false);
  ::raise(SIGINT);
  do {
    ::raise(SIGINT);
  } while (clock.now() < end);
  ::_exit(take_signal_request());
}

TEST(SignalRequest, OnlyAnInterruptAWhileAfterTheFirstEndsTheProcess) {
  using std::chrono::seconds;
  EXPECT_EXIT(
      be_interrupted(Duration(0)), ::testing::ExitedWithCode(SIGINT), "");
  EXPECT_EXIT(
      be_interrupted(seconds(20)), ::testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace sherd::tools
