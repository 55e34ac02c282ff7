// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LimitedLog, WritesALineASecondAndSaysHowManyItLeftOut) {
  LimitedLog log;
  ::testing::internal::CaptureStderr();
  log.warn(Instant(10s), "first");
  for (int i = 0; i < 1000; ++i) {
    log.warn(Instant(10s) + i * 999us, "second");
  }
  log.warn(Instant(11s), "third");
  log.warn(Instant(12s), "fourth");
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(
      said,
      AllOf(
          HasSubstr("first\n"), Not(HasSubstr("second")),
          HasSubstr("third; 1000 lines like this one were left out before it"),
          HasSubstr("fourth\n")));
}

}  // namespace
}  // namespace sherd
