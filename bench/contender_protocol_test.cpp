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
  const auto ready = parse_reply<ReadyReply>(line_of(
      ReadyReply{.torch_version = "2.13.0+cpu", .processes = {12, 13}}));
  ASSERT_TRUE(ready.has_value());
  EXPECT_EQ(ready->torch_version, "2.13.0+cpu");
  EXPECT_THAT(ready->processes, ElementsAre(12, 13));
  const auto ran = parse_reply<StepsReply>(line_of(StepsReply{
      .step_ms = {12.25, 0.001},
      .losses = {5.5, -1e-7},
      .faults = 12,
      .cpu_ms = 24.5}));
  ASSERT_TRUE(ran.has_value());
  EXPECT_THAT(ran->step_ms, ElementsAre(12.25, 0.001));
  EXPECT_THAT(ran->losses, ElementsAre(5.5, -1e-7));
  EXPECT_EQ(ran->faults, 12);
  EXPECT_EQ(ran->cpu_ms, 24.5);
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
    EXPECT_FALSE(parse_reply<ReadyReply>(line).has_value()) << line;
  }
  for (const char* line :
       {"", "bench: ", R"(bench: {"step_ms":[1],"losses":[2]})",
        R"(bench: {"torch_version":"2.13","processes":[1]})"}) {
    EXPECT_FALSE(parse_reply<StepsReply>(line).has_value()) << line;
  }
  const auto with_usage = [](const std::string& members) {
    return parse_reply<StepsReply>(
        R"(bench: {"faults":0,"cpu_ms":1,)" + members);
  };
  EXPECT_TRUE(with_usage(R"("step_ms":[2],"losses":[5]})").has_value());
  for (const char* members :
       {R"("step_ms":[],"losses":[]})", R"("step_ms":[1]})",
        R"("step_ms":[1],"losses":[]})", R"("step_ms":[1],"losses":[2,3]})",
        R"("step_ms":[0],"losses":[5.5]})", R"("step_ms":[-1],"losses":[5.5]})",
        R"("step_ms":[2],"losses":[NaN]})",
        R"("step_ms":[1e999],"losses":[5]})",
        R"("step_ms":["2ms"],"losses":[5]})",
        R"("step_ms":[2],"losses":[5]} more)"}) {
    EXPECT_FALSE(with_usage(members).has_value()) << members;
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(parse_reply<StepsReply>(
                   line_of(StepsReply{.step_ms = {1}, .losses = {kNan}}))
                   .has_value());
}

}  // namespace
}  // namespace sherd::bench
