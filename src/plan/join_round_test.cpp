// SPDX-License-Identifier: Apache-2.0
#include "plan/join_round.h"

#include <gmock/gmock.h>

namespace sherd::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

JoinRound round_of(const std::vector<JoinKind>& kinds) {
  std::vector<double> told;
  for (const auto kind : kinds) {
    told.push_back(static_cast<double>(kind));
  }
  return join_round(told);
}

TEST(JoinRound, TellsRanksWithInputsFromThoseWithout) {
  const auto all = round_of({JoinKind::kReduces, JoinKind::kReduces});
  EXPECT_THAT(all.active, ElementsAre(0, 1));
  EXPECT_EQ(all.first_without, -1);
  EXPECT_EQ(all.kind, JoinKind::kReduces);
  const auto some = round_of(
      {JoinKind::kKeeps, JoinKind::kNoInputs, JoinKind::kKeeps,
       JoinKind::kNoInputs});
  EXPECT_THAT(some.active, ElementsAre(0, 2));
  EXPECT_EQ(some.first_without, 1);
  EXPECT_EQ(some.kind, JoinKind::kKeeps);
  EXPECT_EQ(some.difference, "");
  const auto none = round_of({JoinKind::kNoInputs, JoinKind::kNoInputs});
  EXPECT_THAT(none.active, IsEmpty());
  EXPECT_EQ(none.first_without, 0);
  EXPECT_EQ(none.kind, JoinKind::kNoInputs);
}

TEST(JoinRound, NamesRanksThatDoDifferentThings) {
  const auto round = round_of(
      {JoinKind::kNoInputs, JoinKind::kReduces, JoinKind::kReduces,
       JoinKind::kKeeps, JoinKind::kReducesPartially});
  EXPECT_THAT(
      round.difference,
      AllOf(
          HasSubstr("rank 1 reduces gradients"),
          HasSubstr("rank 3 is under no_sync()")));
}

}  // namespace
}  // namespace sherd::plan
