// SPDX-License-Identifier: Apache-2.0
#include "train/training_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kMiB = 1 << 20;

TrainingPlan some_plan() {
  TrainingPlan plan;
  plan.config.steps = 100;
  plan.config.batch = 8;
  plan.config.seq = 50;
  plan.parameters = 1234;
  plan.corpus = "texts";
  plan.corpus_tokens = 20'000;
  plan.ranks = 2;
  plan.parameter_bytes = 10 * kMiB;
  plan.gradient_bytes = 10 * kMiB;
  plan.optimizer_bytes = 20 * kMiB;
  plan.unit_bytes = 7 * kMiB;
  plan.before_bytes = 263 * kMiB;
  plan.resident_bytes = 450 * kMiB;
  plan.steps_measured = 2;
  plan.step_s = 0.5;
  return plan;
}

TEST(TrainingPlan, HasModelDataMemoryAndTime) {
  const auto text = plan_text(some_plan());
  EXPECT_THAT(text, HasSubstr("1234 parameters"));
  EXPECT_THAT(
      text, HasSubstr("20000 tokens; all steps together use 2.00 epochs"));
  EXPECT_THAT(text, HasSubstr("2 ranks, full_shard; a step has 8 x 50 tokens"));
  EXPECT_THAT(text, HasSubstr("optimizer              20 MiB"));
  EXPECT_THAT(text, HasSubstr("whole units            7 MiB"));
  EXPECT_THAT(text, HasSubstr("activations            150 MiB"));
  EXPECT_THAT(text, HasSubstr("libraries and data     253 MiB"));
  EXPECT_THAT(text, HasSubstr("all, measured          450 MiB"));
  EXPECT_THAT(text, HasSubstr("0.500 s a step, 800 tokens/s; 100 steps take"));
  EXPECT_THAT(text, HasSubstr("measured over 2 steps"));
}

TEST(TrainingPlan, OfOneRankHasNoUnits) {
  auto plan = some_plan();
  plan.ranks = 1;
  EXPECT_THAT(plan_text(plan), Not(HasSubstr("whole units")));
}

TEST(TrainingPlan, EndsWithWhatLimitsCost) {
  auto plan = some_plan();
  EXPECT_THAT(plan_text(plan), Not(HasSubstr("limits")));
  plan.limits = "a table\n";
  EXPECT_THAT(plan_text(plan), HasSubstr("limits\na table\n"));
}

}  // namespace
}  // namespace sherd::tools
