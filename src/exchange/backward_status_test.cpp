// SPDX-License-Identifier: Apache-2.0
#include "exchange/backward_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "exchange/contract_testing.h"

namespace sherd::exchange {
namespace {

using contract::make_model;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::vector<int> kPair{4, 6};  // World ranks of the group.

// Trainable parameters by unit: 3, 0, 1.
ModelSpec model() {
  return make_model(
      2,
      {{{.numels = {4, 5}},
        {.numels = {3}, .trainable = false},
        {.numels = {2}, .dtype = c10::ScalarType::Double}},
       {{.numels = {9}, .trainable = false}},
       {{.numels = {1}}}});
}

Result<BackwardOutcome> combined(
    const BackwardStatus& a, const BackwardStatus& b) {
  const std::vector<at::Tensor> statuses{a.encode(model()), b.encode(model())};
  return combine_backward_statuses(model(), statuses, kPair);
}

TEST(BackwardStatus, MarksAreOredOverRanksAndCalls) {
  BackwardStatus a;
  a.mark_used(0, {true, false, false});
  a.mark_used(0, {false, false, true});
  BackwardStatus b;
  b.mark_used(2, {true});
  const auto outcome = combined(a, b).value();
  EXPECT_EQ(
      outcome.used,
      (std::vector<std::vector<bool>>{{true, false, true}, {}, {true}}));
  EXPECT_EQ(outcome.late, std::vector<bool>(3, false));
}

TEST(BackwardStatus, OneLateRankMakesAUnitLate) {
  BackwardStatus a;
  BackwardStatus b;
  b.late = {false, false, true};
  EXPECT_EQ(
      combined(a, b).value().late, (std::vector<bool>{false, false, true}));
}

TEST(BackwardStatus, IsAsLongWhateverItSays) {
  BackwardStatus full;
  full.mark_used(0, {true, true, true});
  full.late = {true, true, true};
  full.aborted = std::string(10'000, 'x');
  EXPECT_EQ(
      full.encode(model()).numel(), BackwardStatus().encode(model()).numel());
}

TEST(BackwardStatus, AnAbortNamesTheFirstWorldRankAndItsReason) {
  BackwardStatus a;
  BackwardStatus b;
  b.aborted = "the loss is NaN";
  const auto status = combined(a, b).status();
  EXPECT_EQ(status.code(), ErrorCode::kAborted);
  EXPECT_THAT(
      status.message(),
      AllOf(HasSubstr("rank 6"), HasSubstr("the loss is NaN")));
  a.aborted = "out of patience";
  EXPECT_THAT(
      combined(a, b).status().message(),
      AllOf(
          HasSubstr("rank 4"), HasSubstr("out of patience"),
          Not(HasSubstr("NaN"))));
}

TEST(BackwardStatus, ALongReasonIsCutNotOverrun) {
  BackwardStatus a;
  a.aborted = std::string(100'000, 'x');
  const auto message = combined(a, {}).status().message();
  EXPECT_THAT(message, HasSubstr("xxxx"));
  EXPECT_LT(message.size(), 700U);
}

std::string difference(const std::string& a, const std::string& b) {
  const std::vector<std::string> texts{a, b};
  return first_difference(texts, kPair);
}

TEST(FirstDifference, IsEmptyForEqualTexts) {
  EXPECT_EQ(difference("one\ntwo\n", "one\ntwo\n"), "");
  EXPECT_EQ(difference("", ""), "");
}

TEST(FirstDifference, ShowsTheLineAndTheWorldRanks) {
  EXPECT_THAT(
      difference("one\ntwo\nthree\n", "one\nzwei\ndrei\n"),
      AllOf(
          HasSubstr("rank 4 has two"), HasSubstr("rank 6 has zwei"),
          Not(HasSubstr("drei"))));
}

TEST(FirstDifference, KnowsAShorterText) {
  EXPECT_THAT(
      difference("one\n", "one\ntwo\n"),
      AllOf(HasSubstr("rank 4 has nothing more"), HasSubstr("rank 6 has two")));
}

}  // namespace
}  // namespace sherd::exchange
