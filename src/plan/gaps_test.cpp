// SPDX-License-Identifier: Apache-2.0
#include "plan/gaps.h"

#include <utility>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

UnitSets present(
    const UnitSets& visits, std::vector<std::int64_t> budget, int ahead) {
  ScheduleInput input;
  input.unit_bytes = {1, 2, 4, 8};
  input.visits = visits;
  input.budget_bytes = std::move(budget);
  input.ahead_visits = ahead;
  return present_units(input);
}

GapProblem problem_of(
    const UnitSets& visits,
    std::vector<std::int64_t> sizes,
    std::vector<std::int64_t> budget,
    std::vector<bool> carried) {
  ScheduleInput input;
  input.unit_bytes = std::move(sizes);
  input.budget_bytes = std::move(budget);
  input.carried = std::move(carried);
  return gap_problem(visits, input);
}

TEST(Gaps, OnDemandOnlyTheVisitIsPresent) {
  const UnitSets visits{{0}, {1, 2}, {3}};
  EXPECT_EQ(present(visits, {99, 99, 99}, 0), visits);
}

TEST(Gaps, UnitsOfTheNextVisitsArePresentWhereTheyFit) {
  const UnitSets visits{{0}, {1, 2}, {3}};
  EXPECT_THAT(
      present(visits, {99, 99, 99}, 1),
      ElementsAre(ElementsAre(0, 1, 2), ElementsAre(1, 2, 3), ElementsAre(3)));
  EXPECT_THAT(
      present(visits, {6, 13, 8}, 1),
      ElementsAre(ElementsAre(0, 1), ElementsAre(1, 2), ElementsAre(3)));
  EXPECT_THAT(
      present(visits, {99, 99, 99}, 9),
      ElementsAre(
          ElementsAre(0, 1, 2, 3), ElementsAre(1, 2, 3), ElementsAre(3)));
}

TEST(Gaps, AUnitThatDoesNotFitInBetweenIsNotPresentEarlier) {
  // Unit 3 would fit at the first visit, but not at the second.
  EXPECT_THAT(
      present({{0}, {2}, {3}}, {13, 11, 8}, 2),
      ElementsAre(ElementsAre(0, 2), ElementsAre(2), ElementsAre(3)));
}

TEST(Gaps, NearerUsesGetTheRoomFirst) {
  EXPECT_THAT(
      present({{0}, {2}, {1}}, {5, 6, 2}, 2),
      ElementsAre(ElementsAre(0, 2), ElementsAre(1, 2), ElementsAre(1)));
}

TEST(Gaps, LieBetweenUsesThatAreNotNeighbours) {
  const std::vector<std::int64_t> sizes{1, 2, 4};
  const std::vector<std::int64_t> budget{10, 10, 10, 10};
  const GapProblem problem = problem_of(
      {{0, 1}, {1}, {2}, {0, 1}}, sizes, budget, {false, false, false});
  EXPECT_THAT(problem.room, ElementsAre(7, 8, 6, 7));
  EXPECT_THAT(problem.gaps, ElementsAre(Gap{0, 1, 1, 3}, Gap{1, 2, 2, 3}));
}

TEST(Gaps, OfCarriedUnitsGoOverTheStepBoundary) {
  const std::vector<std::int64_t> sizes{1, 2, 4};
  const std::vector<std::int64_t> budget{10, 10, 10};
  // Unit 0 is used at both ends, unit 2 never.
  const GapProblem problem =
      problem_of({{0}, {1}, {0}}, sizes, budget, {true, true, true});
  EXPECT_THAT(
      problem.gaps,
      ElementsAre(Gap{0, 1, 1, 2}, Gap{1, 2, 2, 4}, Gap{0, 1, 3, 3}));
}

TEST(Gaps, AStepWithoutVisitsHasNone) {
  EXPECT_THAT(problem_of({}, {}, {}, {}).gaps, IsEmpty());
}

TEST(GapsDeathTest, PresentUnitsMustFit) {
  const std::vector<std::int64_t> sizes{3};
  const std::vector<std::int64_t> budget{2};
  EXPECT_DEATH(
      (void)problem_of({{0}}, sizes, budget, {false}), "broken invariant");
}

}  // namespace
}  // namespace sherd::plan
