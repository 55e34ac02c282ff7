// SPDX-License-Identifier: Apache-2.0
#include "bench/contender_protocol.h"

#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::bench {
namespace {

using ::testing::ElementsAre;

TEST(Protocol, WhatIsWrittenIsRead) {
  EXPECT_EQ(parse_request("7"), 7);
  EXPECT_EQ(parse_request("0"), 0);
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
  EXPECT_TRUE(is_answer("bench: {}"));
  EXPECT_FALSE(is_answer("UserWarning: bench: {}"));
  EXPECT_FALSE(is_answer(""));
}

TEST(Protocol, WrongLinesAreRefused) {
  for (const char* line :
       {"", "run", "-1", "1x", "1 2", "999999999", "99999999999999999999"}) {
    EXPECT_FALSE(parse_request(line).has_value()) << line;
  }
  for (const char* line :
       {"", "bench: ", "bench: {}", R"({"torch_version":"2","processes":[1]})",
        R"(bench: {"torch_version":"2.13","processes":[]})",
        R"(bench: {"torch_version":"2.13","processes":[0]})",
        R"(bench: {"torch_version":"2.13","processes":[1,"x"]})",
        R"(bench: {"step_ms":[1],"losses":[2]})"}) {
    EXPECT_FALSE(parse_ready_reply(line).has_value()) << line;
  }
  for (const char* line :
       {"", "bench: ", R"(bench: {"step_ms":[],"losses":[]})",
        R"(bench: {"step_ms":[1]})", R"(bench: {"step_ms":[1],"losses":[]})",
        R"(bench: {"step_ms":[1],"losses":[2,3]})",
        R"(bench: {"step_ms":[0],"losses":[5.5]})",
        R"(bench: {"step_ms":[-1],"losses":[5.5]})",
        R"(bench: {"step_ms":[2],"losses":[NaN]})",
        R"(bench: {"step_ms":[1e999],"losses":[5]})",
        R"(bench: {"step_ms":["2ms"],"losses":[5]})",
        R"(bench: {"step_ms":[2],"losses":[5]} more)",
        R"(bench: {"torch_version":"2.13","processes":[1]})"}) {
    EXPECT_FALSE(parse_steps_reply(line).has_value()) << line;
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(
      parse_steps_reply(line_of(StepsReply{.step_ms = {1}, .losses = {kNan}}))
          .has_value());
}

}  // namespace
}  // namespace sherd::bench
