// SPDX-License-Identifier: Apache-2.0
#include "bench/contender_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::bench {
namespace {

using ::testing::ElementsAre;

TEST(Protocol, WhatIsWrittenIsRead) {
  EXPECT_EQ(parse_request(request_line(7)), 7);
  EXPECT_EQ(parse_request(request_line(0)), 0);
  const auto ready = parse_ready_reply(line_of(
      ReadyReply{.torch_version = "2.13.0+cpu", .processes = {12, 13}}));
  ASSERT_TRUE(ready.has_value());
  EXPECT_EQ(ready->torch_version, "2.13.0+cpu");
  EXPECT_THAT(ready->processes, ElementsAre(12, 13));
  const auto ran = parse_steps_reply(
      line_of(StepsReply{.step_ms = {12.25, 0.001}, .losses = {5.5, -1e-7}}));
  ASSERT_TRUE(ran.has_value());
  EXPECT_THAT(ran->step_ms, ElementsAre(12.25, 0.001));
  EXPECT_THAT(ran->losses, ElementsAre(5.5, -1e-7));
}

TEST(Protocol, OnlyMarkedLinesAreAnswers) {
  EXPECT_TRUE(is_answer("bench: ran 1 2 3"));
  EXPECT_FALSE(is_answer("UserWarning: bench: ran 1 2 3"));
  EXPECT_FALSE(is_answer(""));
}

TEST(Protocol, WrongLinesAreRefused) {
  for (const char* line :
       {"", "run", "run 0", "run -1", "run 1x", "run 1 2", "run 999999999",
        "run 99999999999999999999", "End", "end now"}) {
    EXPECT_FALSE(parse_request(line).has_value()) << line;
  }
  for (const char* line :
       {"", "bench:", "bench: ready", "bench: ready 2.13", "ready 2.13 1",
        "bench: ready 2.13 0", "bench: ready 2.13 1 x", "bench: ran 1 2 3"}) {
    EXPECT_FALSE(parse_ready_reply(line).has_value()) << line;
  }
  for (const char* line :
       {"", "bench: ran", "bench: ran 0", "bench: ran 1 2",
        "bench: ran 1 2 3 4", "bench: ran 2 1 2 3", "bench: ran 1 0 5.5",
        "bench: ran 1 -1 5.5", "bench: ran 1 2 nan", "bench: ran 1 inf 5",
        "bench: ran 1 2ms 5", "bench: ran -1", "bench: ready 2.13 1"}) {
    EXPECT_FALSE(parse_steps_reply(line).has_value()) << line;
  }
}

}  // namespace
}  // namespace sherd::bench
