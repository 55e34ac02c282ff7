// SPDX-License-Identifier: Apache-2.0
//
// The built `sherd bench step` for a few steps. Nothing here looks at speed:
// that the losses of the contenders agree is what it checks by itself.
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include "bench/bench_result.h"

namespace sherd {
namespace {

using test::bench_result;
using test::Outcome;
using ::testing::AllOf;
using ::testing::HasSubstr;

Outcome bench(const std::string& arguments) {
  return test::run_in_shell(
      "'" SHERD_COMMAND "' bench step --work tiny --rounds-max 1 " + arguments);
}

TEST(BenchRun, TwoRanksAreMeasuredInEveryStrategy) {
  for (const std::string strategy :
       {"full_shard", "shard_grad_op", "no_shard"}) {
    const auto outcome =
        bench("--ranks 2 --peers none --block-steps 2 --strategy " + strategy);
    const auto json = bench_result(outcome);
    ASSERT_TRUE(json.is_object()) << outcome.shown;
    EXPECT_GT(json["bound_ms"], 0.0);
    EXPECT_GT(json["sherd_ratio"], 0.0);
    EXPECT_TRUE(json["sherd_ratio_low"].is_null());  // One round is too few.
    EXPECT_TRUE(json["ddp_ms"].is_null());
    EXPECT_GT(json["sherd_pss_bytes"], 20 << 20);
    EXPECT_EQ(json["strategy"], strategy);
    EXPECT_THAT(outcome.shown, HasSubstr("1 rounds are done"));
  }
}

TEST(BenchRun, OneRankIsComparedWithPlainLibTorch) {
  const auto outcome = bench("--ranks 1 --block-steps 2 --json-only");
  const auto json = bench_result(outcome);
  ASSERT_TRUE(json.is_object()) << outcome.shown;
  EXPECT_EQ(outcome.shown.find("to bound"), std::string::npos);
  EXPECT_EQ(json["ranks"], 1);
  EXPECT_TRUE(json["fsdp2_ms"].is_null());
}

TEST(BenchRun, TheSameInBf16) {
  for (const char* ranks : {"1", "2"}) {
    const auto outcome = bench(
        std::string("--peers none --block-steps 2 --dtype bf16 --ranks ") +
        ranks);
    const auto json = bench_result(outcome);
    ASSERT_TRUE(json.is_object()) << outcome.shown;
    EXPECT_EQ(json["dtype"], "bf16");
    EXPECT_GT(json["sherd_ratio"], 0.0);
  }
}

// A single process would measure nothing.
TEST(BenchRun, ARankOfCollectivesThatIsStartedByHandSaysWhatStartsIt) {
  const auto outcome = test::run_in_shell("'" SHERD_BENCH_COLLECTIVES "'");
  EXPECT_EQ(outcome.exit_status, 2);
  EXPECT_THAT(
      outcome.shown, HasSubstr("one rank of `sherd bench collectives`"));
}

TEST(BenchRun, AContenderThatCannotStartIsReportedAndNotMeasured) {
  const auto outcome =
      bench("--ranks 2 --peers none --exchange collective --budget 10");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(
      outcome.shown,
      AllOf(
          HasSubstr("contender sherd ended with exit status"),
          HasSubstr("a budget of 10 bytes is below its floor")));
}

}  // namespace
}  // namespace sherd
