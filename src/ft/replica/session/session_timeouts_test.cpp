// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/session_timeouts.h"

#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd::ft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SessionTimeouts, AreWhatTheTextNamesAndElseTheDefaults) {
  const auto some = timeouts_of("fetch=2.5,leave=0.0001,linger=1000000");
  EXPECT_EQ(some.fetch, milliseconds(2500));
  EXPECT_EQ(some.leave, milliseconds(1));
  EXPECT_EQ(some.linger, seconds(1000000));
  EXPECT_EQ(some.siblings, SessionTimeouts().siblings);
  EXPECT_EQ(some.connect, milliseconds(700));
  EXPECT_NO_THROW(check_timeouts(some));
}

TEST(SessionTimeouts, AWrongTextNamesWhatWasExpected) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      timeouts_of(text);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  EXPECT_THAT(
      refusal("leave=3,lunch=60"),
      AllOf(
          HasSubstr("names among leave, connect, link, fetch, snapshot, "
                    "siblings, linger"),
          HasSubstr("found \"lunch=60\"")));
  for (const std::string wrong :
       {"leave=", "leave=0", "leave=-1", "leave=nan", "leave=3s",
        "leave=1e7"}) {
    EXPECT_THAT(
        refusal(wrong),
        AllOf(
            HasSubstr("expected leave=SECONDS, above 0"),
            HasSubstr("found \"" + wrong + "\"")));
  }
  EXPECT_THAT(refusal("leave"), HasSubstr("expected NAME=SECONDS"));
  SessionTimeouts none;
  none.link = milliseconds(0);
  EXPECT_THROW(check_timeouts(none), Error);
}

}  // namespace
}  // namespace sherd::ft
