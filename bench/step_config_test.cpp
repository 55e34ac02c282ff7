// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <limits>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "bench/step_bench.h"

namespace sherd::bench {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The complaint of check() about the preset changed in one place; empty if there is none.
std::string refusal(const std::function<void(StepConfig&)>& change) {
  StepConfig config;
  change(config);
  try {
    check(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(StepConfig, ThePresetIsFine) {
  EXPECT_EQ(refusal([](StepConfig&) {}), "");
  EXPECT_EQ(refusal([](StepConfig& c) { c.budget = "64MiB"; }), "");
  EXPECT_EQ(refusal([](StepConfig& c) { c.dtype = "bf16"; }), "");
}

TEST(StepConfig, WrongWordsAreRefusedNamingTheRightOnes) {
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.work = "huge"; }),
      AllOf(HasSubstr("wide, small, tiny"), HasSubstr("found huge")));
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.dtype = "fp16"; }),
      AllOf(HasSubstr("one of fp32, bf16"), HasSubstr("found 'fp16'")));
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.mode = "zero"; }),
      AllOf(
          HasSubstr("--mode: expected one of fsdp, ddp"),
          HasSubstr("found 'zero'")));
  EXPECT_THAT(
      refusal([](StepConfig& c) {
        c.mode = "ddp";
        c.strategy = "no_shard";
      }),
      HasSubstr("--strategy: expected full_shard with --mode ddp"));
  EXPECT_THAT(
      refusal([](StepConfig& c) {
        c.mode = "ddp";
        c.budget = "1MiB";
      }),
      HasSubstr("--budget: expected none with --mode ddp"));
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.exchange = "nccl"; }),
      AllOf(
          HasSubstr("one of auto, collective, shm, hierarchical"),
          HasSubstr("found 'nccl'")));
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.strategy = "zero"; }),
      HasSubstr("full_shard, shard_grad_op, no_shard"));
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.update = "never"; }),
      HasSubstr("step, backward"));
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.peers = "some"; }), HasSubstr("all, none"));
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.language = "rust"; }),
      AllOf(HasSubstr("one of cpp, python"), HasSubstr("found 'rust'")));
  EXPECT_THAT(
      refusal([](StepConfig& c) {
        c.language = "python";
        c.exchange = "hierarchical";
      }),
      HasSubstr("shm with --language python, found hierarchical"));
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.heap = "big"; }), HasSubstr("glibc, kept"));
}

TEST(StepConfig, WrongNumbersAreRefused) {
  for (const int replicate : {0, 3}) {
    EXPECT_THAT(
        refusal([&](StepConfig& c) { c.replicate = replicate; }),
        HasSubstr("--replicate: expected a number that divides the 2 ranks"));
  }
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.ranks = 0; }),
      HasSubstr("--ranks: expected at least 1, found 0"));
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.budget = "0"; }), HasSubstr("--budget"));
  EXPECT_THAT(
      refusal([](StepConfig& c) { c.budget = "much"; }), HasSubstr("much"));
  EXPECT_THAT(
      refusal([](StepConfig& c) {
        c.budget = "1GiB";
        c.strategy = "no_shard";
      }),
      HasSubstr("none with --strategy no_shard"));
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(refusal([](StepConfig& c) { c.limits.interval_width = 0; }), "");
  EXPECT_NE(refusal([](StepConfig& c) { c.limits.interval_width = kNan; }), "");
  EXPECT_NE(refusal([](StepConfig& c) { c.limits.rounds_max = 0; }), "");
  EXPECT_NE(refusal([](StepConfig& c) { c.limits.minutes_max = kNan; }), "");
  EXPECT_NE(refusal([](StepConfig& c) { c.block_steps = -1; }), "");
}

TEST(StepConfig, PeersTakePartWhereTheyHaveTheSameTask) {
  StepConfig config;
  EXPECT_THAT(
      contenders_of(config), ElementsAre("bound", "sherd", "fsdp2", "ddp"));
  config.strategy = "no_shard";
  EXPECT_THAT(contenders_of(config), ElementsAre("bound", "sherd", "ddp"));
  config.ranks = 1;
  EXPECT_THAT(contenders_of(config), ElementsAre("bound", "sherd"));
  config.language = "python";
  EXPECT_THAT(contenders_of(config), ElementsAre("bound", "sherd", "python"));
  config.language = "cpp";
  config.ranks = 4;
  config.peers = "none";
  EXPECT_THAT(contenders_of(config), ElementsAre("bound", "sherd"));
}

TEST(Workload, WideHas43MillionParameters) {
  // 6 blocks of 7,087,872, two tables of 256 and 64 rows, a norm, the head.
  EXPECT_EQ(
      parameters_of(workload_named("wide")),
      6 * 7'087'872 + (256 + 64) * 768 + 2 * 768 + 256 * 768);
}

}  // namespace
}  // namespace sherd::bench
