// SPDX-License-Identifier: Apache-2.0
#include "bench/step_log.h"

#include <gtest/gtest.h>

namespace sherd::bench {
namespace {

TEST(StepLines, ALineSaysAllThereIs) {
  const StepEvent line{
      .kind = StepEventKind::kComputed,
      .step = 7,
      .time_s = 1234.5,
      .hash = 0x89abcdef01234567};

  const auto found = parse_step_event(line_of(line));

  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, StepEventKind::kComputed);
  EXPECT_EQ(found->step, 7);
  EXPECT_DOUBLE_EQ(found->time_s, 1234.5);
  EXPECT_EQ(found->hash, line.hash);
}

TEST(StepLines, AStepMayHaveNoHash) {
  for (const auto kind :
       {StepEventKind::kBegun, StepEventKind::kFollowed,
        StepEventKind::kReplayed, StepEventKind::kDropped}) {
    const auto found = parse_step_event(line_of({.kind = kind, .step = 1}));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->kind, kind);
    EXPECT_FALSE(found->hash.has_value());
  }
}

TEST(StepLines, OtherLinesAreNone) {
  for (const char* line :
       {"", "computed", "computed 1 2", "made 1 2 -", "computed -1 2 -",
        "computed 1x 2 -", "computed 1 nan -", "computed 1 2 12",
        "computed 1 2 0123456789abcdeg", "computed 1 2 - 3"}) {
    EXPECT_FALSE(parse_step_event(line).has_value()) << line;
  }
}

TEST(StepLines, AFileIsNamedAfterWhoWritesIt) {
  const auto found =
      parse_file_name(file_name_of({.replica = 2, .rank = 1, .process = 4711}));

  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->replica, 2);
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->process, 4711);
}

TEST(StepLines, OtherFilesAreNobodys) {
  for (const char* name :
       {"", "log", "replica-1", "replica-1.rank-0", "replica-1.rank-0.life-",
        "replica-x.rank-0.life-1", "replica-1.rank-0.life-1.part",
        "replica--1.rank-0.life-1", "replica-1.rank-0.life-0"}) {
    EXPECT_FALSE(parse_file_name(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace sherd::bench
