// SPDX-License-Identifier: Apache-2.0
#include "plan/step_follower.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <gtest/gtest.h>

namespace sherd::plan {
namespace {

constexpr std::int64_t kBudget = 3;
using Units = std::vector<UnitId>;

StepPlanOptions four_units() {
  return {.unit_bytes = {1, 1, 1, 1}, .frozen = std::vector<bool>(4, false)};
}

// What an engine would do with the actions: keeps a set whole, gathers what is missing, and
// remembers the order of gathers.
struct Rank {
  explicit Rank(const StepPlanOptions& options = four_units())
      : follower(options) {}

  void begin(bool training = true) { follower.begin_step(training, true); }
  void take(const StepFollower::DueActions& move) {
    if (move.whole) {
      std::erase_if(whole, [&](UnitId unit) {
        return !std::binary_search(
            move.whole->begin(), move.whole->end(), unit);
      });
      std::for_each(move.whole->begin(), move.whole->end(), [&](UnitId unit) {
        gather(unit);
      });
    }
    for (const auto& [actions, in_backward] : move.actions) {
      for (const auto unit : actions->reshard) {
        whole.erase(unit);
      }
      for (const auto unit : actions->unshard) {
        gather(unit);
      }
    }
  }
  void gather(UnitId unit) {
    if (whole.insert(unit).second) {
      gathers.push_back(unit);
    }
  }
  // Returns whether the plan had made the units whole.
  bool visit(const Units& units, bool in_backward = false) {
    const auto move = follower.visit(units, in_backward);
    take(move);
    const bool there = std::all_of(
        units.begin(), units.end(),
        [&](UnitId unit) { return whole.contains(unit); });
    std::for_each(
        units.begin(), units.end(), [&](UnitId unit) { gather(unit); });
    return there;
  }
  void end_backward() { take(follower.end_backward()); }
  void end_step() {
    follower.end_step(kBudget);
    whole.clear();
  }
  // 0 1 2 3 | 3 2 1 0, without the units in `skipped` in backward.
  bool train(const std::set<UnitId>& skipped = {}) {
    bool planned = true;
    for (const UnitId unit : {0, 1, 2, 3}) {
      planned = visit({unit}) && planned;
    }
    for (const UnitId unit : {3, 2, 1, 0}) {
      if (!skipped.contains(unit)) {
        planned = visit({unit}, true) && planned;
      }
    }
    end_backward();
    return planned;
  }
  void train_step() {
    begin();
    train();
    end_step();
  }
  // Visits 0 1 2 3 without gradients. Returns the number of steps that began.
  int evaluate() {
    int steps = 0;
    for (const UnitId unit : {0, 1, 2, 3}) {
      if (follower.begins_step({unit}, false, kBudget)) {
        begin(false);
        ++steps;
      }
      visit({unit});
    }
    return steps;
  }

  StepFollower follower;
  std::set<UnitId> whole;
  Units gathers;
};

TEST(StepFollower, LearnsNothingFromAStepThatIsDropped) {
  Rank rank;
  rank.train_step();
  const auto known = rank.follower.fingerprint();
  rank.begin();
  rank.visit({1});
  rank.visit({0});  // Not ahead in the plan.
  EXPECT_TRUE(rank.follower.departed());
  rank.follower.drop_step();
  EXPECT_FALSE(rank.follower.departed());
  EXPECT_FALSE(rank.follower.following());
  rank.end_step();
  EXPECT_EQ(rank.follower.fingerprint(), known);
  EXPECT_EQ(rank.follower.counters().steps, 1);
  rank.begin();
  EXPECT_TRUE(rank.train());
}

TEST(StepFollower, PlansAreMadeAnewForAnotherBudgetAndFollowedAtOnce) {
  Rank rank;
  rank.train_step();
  rank.follower.replan(4);  // Room for all units.
  rank.gathers.clear();
  rank.begin();
  EXPECT_TRUE(rank.train());
  EXPECT_EQ(rank.gathers, (Units{0, 1, 2, 3}));
  rank.end_step();
  const auto known = rank.follower.fingerprint();
  rank.follower.replan(kBudget);
  EXPECT_NE(rank.follower.fingerprint(), known);
  rank.follower.replan(0);  // No visit fits.
  EXPECT_EQ(rank.follower.latest(), nullptr);
  rank.train_step();  // It is recorded again.
  EXPECT_NE(rank.follower.latest(), nullptr);
}

TEST(StepFollower, FollowsFromTheSecondEqualStepOn) {
  Rank rank;
  rank.begin();
  EXPECT_FALSE(rank.train());
  EXPECT_FALSE(rank.follower.following());
  rank.end_step();
  for (int step = 0; step < 3; ++step) {
    rank.begin();
    EXPECT_TRUE(rank.train());
    EXPECT_TRUE(rank.follower.following());
    rank.end_step();
  }
  EXPECT_EQ(rank.follower.counters().plans_made, 1);
  EXPECT_EQ(rank.follower.counters().steps, 4);
  EXPECT_EQ(rank.follower.counters().steps_planned, 3);
  EXPECT_EQ(rank.follower.counters().deviations, 0);
}

TEST(StepFollower, DoesNotFollowWhereRanksDiffer) {
  Rank rank;
  rank.train_step();
  rank.follower.begin_step(true, false);
  EXPECT_FALSE(rank.train());
  rank.end_step();
  EXPECT_EQ(rank.follower.counters().plans_made, 1);  // Still the same one.
  rank.begin();
  EXPECT_TRUE(rank.train());
}

TEST(StepFollower, GathersTheSameWhateverIsLeftOut) {
  Rank all;
  Rank some;
  for (auto* rank : {&all, &some}) {
    rank->train_step();
    rank->gathers.clear();
    rank->begin();
  }
  all.train();
  some.train({0, 1, 3});
  EXPECT_EQ(some.gathers, all.gathers);
  EXPECT_EQ(some.whole, all.whole);
  EXPECT_FALSE(some.follower.departed());
  // It stays the same in the place of the next micro-batch.
  all.train();
  some.train();
  EXPECT_EQ(some.gathers, all.gathers);
}

TEST(StepFollower, TheFirstVisitMayBeLeftOutToo) {
  Rank all;
  Rank some;
  for (auto* rank : {&all, &some}) {
    rank->train_step();
    rank->gathers.clear();
    rank->begin();
  }
  all.train();
  for (const UnitId unit : {1, 2, 3}) {
    EXPECT_TRUE(some.visit({unit}));
  }
  some.visit({3}, true);
  some.end_backward();
  EXPECT_EQ(some.gathers, all.gathers);
}

TEST(StepFollower, LeavingOutDoesNotReachOverTheEndOfABackward) {
  Rank rank;
  rank.begin();
  rank.train();
  rank.train();  // Two micro-batches.
  rank.end_step();
  rank.gathers.clear();
  rank.begin();
  rank.visit({0});
  // Forward visits of the second micro-batch are not ahead in the first.
  EXPECT_TRUE(rank.visit({3}));
  rank.visit({1});
  EXPECT_FALSE(rank.follower.following());
  EXPECT_TRUE(rank.follower.departed());
  EXPECT_EQ(rank.follower.counters().deviations, 1);
}

TEST(StepFollower, AnotherPlanThatBeganAlikeTakesOver) {
  Rank rank;
  rank.train_step();
  rank.begin();
  rank.visit({0});
  rank.visit({2});
  rank.visit({1});  // In another order.
  rank.visit({1}, true);
  rank.end_backward();
  rank.end_step();
  EXPECT_EQ(rank.follower.counters().plans_made, 2);
  for (int round = 0; round < 2; ++round) {
    rank.begin();
    EXPECT_TRUE(rank.train());
    rank.end_step();
    rank.begin();
    rank.visit({0});
    rank.visit({2});
    EXPECT_TRUE(rank.visit({1}));
    EXPECT_TRUE(rank.visit({1}, true));
    rank.end_backward();
    EXPECT_TRUE(rank.follower.following());
    rank.end_step();
  }
  EXPECT_EQ(rank.follower.counters().plans_made, 2);
}

// A training step with other visits than Rank::train(), and the same first one.
void train_shorter_step(Rank& rank, bool with_first_visit = true) {
  rank.begin();
  for (const UnitId unit : {0, 2, 1}) {
    if (unit != 0 || with_first_visit) {
      rank.visit({unit});
    }
  }
  rank.visit({1}, true);
  rank.end_backward();
  rank.end_step();
}

// As for a discriminator, which a GAN trains on samples and then visits for its generator.
TEST(StepFollower, StepsThatTakeTurnsAreForeseen) {
  Rank rank;
  for (int round = 0; round < 6; ++round) {
    for (const char turn : std::string("LSLLS")) {
      turn == 'L' ? rank.train_step() : train_shorter_step(rank);
    }
    if (round == 2) {
      rank.follower.replan(kBudget);
    }
    for (int batch = 0; batch < 40; ++batch) {
      rank.evaluate();
    }
    EXPECT_TRUE(rank.follower.begins_step({0}, true, kBudget));
  }
  // Nearly all turns of the last four rounds.
  EXPECT_GE(rank.follower.counters().steps_planned, 20 + 6 * 39);
  EXPECT_LE(rank.follower.counters().deviations, 6);
  EXPECT_EQ(rank.follower.counters().plans_made, 3);
}

TEST(StepFollower, ARankThatLeavesOutTheFirstVisitFollowsThePlanThatIsDue) {
  std::vector<Rank> ranks(2);
  for (const char turn : std::string("LSLLSLSLL")) {
    for (auto& rank : ranks) {
      turn == 'L' ? rank.train_step() : train_shorter_step(rank);
    }
  }
  for (auto& rank : ranks) {
    rank.gathers.clear();
  }
  train_shorter_step(ranks[0]);
  train_shorter_step(ranks[1], /*with_first_visit=*/false);
  EXPECT_EQ(ranks[0].gathers, ranks[1].gathers);
  EXPECT_EQ(ranks[0].follower.fingerprint(), ranks[1].follower.fingerprint());
}

TEST(StepFollower, EvaluationEndsWhereItsFirstVisitComesRound) {
  Rank rank;
  EXPECT_EQ(rank.evaluate(), 1);
  for (int round = 1; round < 4; ++round) {
    EXPECT_EQ(rank.evaluate(), 1);
    EXPECT_TRUE(rank.follower.following());
  }
  // Nothing changes meanwhile, so what is kept stays over the end.
  ASSERT_NE(rank.follower.latest(), nullptr);
  EXPECT_FALSE(rank.follower.latest()->schedule.initial.empty());
}

TEST(StepFollower, TrainingAndEvaluationHaveTheirOwnPlans) {
  Rank rank;
  rank.train_step();
  for (int round = 0; round < 3; ++round) {
    rank.evaluate();
    EXPECT_TRUE(rank.follower.begins_step({0}, true, kBudget));
    rank.begin();
    EXPECT_TRUE(rank.train());
    EXPECT_TRUE(rank.follower.following());
    rank.end_step();
  }
  EXPECT_EQ(rank.follower.counters().plans_made, 2);
}

TEST(StepFollower, ThePlanOfEachStepIsTheLatestAndStaysKnown) {
  Rank rank;
  rank.train_step();
  const auto trained = rank.follower.latest()->record;
  rank.begin(false);
  rank.visit({0});
  rank.end_step();
  EXPECT_FALSE(rank.follower.latest()->record == trained);
  // More kinds of evaluations than plans are kept, with training in between.
  for (const UnitId last : {0, 1, 2, 3, 0, 1, 2, 3}) {
    rank.train_step();
    EXPECT_TRUE(rank.follower.latest()->record == trained);
    rank.begin(false);
    rank.visit({last});
    rank.visit({(last + 1) % 4});
    rank.end_step();
  }
  rank.begin();
  EXPECT_TRUE(rank.train());
}

TEST(StepFollower, ASectionWithoutGradientsIsPartOfItsTrainingStep) {
  Rank rank;
  int begun = 0;
  const auto visit = [&](UnitId unit, bool training, bool in_backward = false) {
    if (rank.follower.begins_step({unit}, training, kBudget)) {
      rank.begin(training);
      ++begun;
    }
    return rank.visit({unit}, in_backward);
  };
  for (const bool planned : {false, true, true}) {
    EXPECT_EQ(visit(0, true), planned);
    EXPECT_EQ(visit(1, false), planned);
    EXPECT_EQ(visit(2, true), planned);
    visit(2, true, true);
    visit(0, true, true);
    rank.end_backward();
    rank.end_step();
  }
  EXPECT_EQ(begun, 3);
  EXPECT_EQ(rank.follower.counters().plans_made, 1);
  EXPECT_EQ(rank.follower.counters().steps_planned, 2);
}

// As where a custom autograd Function reads the weight of a tied head.
TEST(StepFollower, TheFirstUnitMayBeReadAgainWithoutGradientsInAStep) {
  Rank rank;
  int begun = 0;
  const auto visit = [&](UnitId unit, bool training) {
    if (rank.follower.begins_step({unit}, training, kBudget)) {
      rank.begin(training);
      ++begun;
    }
    return rank.visit({unit});
  };
  for (const bool planned : {false, true, true}) {
    EXPECT_EQ(visit(0, true), planned);
    EXPECT_EQ(visit(1, true), planned);
    visit(0, false);
    visit(0, false);
    // Once it is planned, others may be read, too.
    EXPECT_EQ(visit(2, !planned), planned);
    rank.visit({2}, true);
    rank.visit({0}, true);
    rank.end_backward();
    rank.end_step();
  }
  EXPECT_EQ(begun, 3);
  EXPECT_EQ(rank.follower.counters().plans_made, 1);
  EXPECT_EQ(rank.follower.counters().steps_planned, 2);
}

TEST(StepFollower, AnEvaluationDropsATrainingStepThatWasAborted) {
  Rank rank;
  rank.train_step();
  for (const int visits : {1, 2}) {
    EXPECT_TRUE(rank.follower.begins_step({0}, true, kBudget));
    rank.begin();
    for (UnitId unit = 0; unit < visits; ++unit) {
      rank.visit({unit});
    }
    EXPECT_EQ(rank.evaluate(), 1);
    EXPECT_EQ(rank.evaluate(), 1);
    EXPECT_TRUE(rank.follower.following());
    EXPECT_TRUE(rank.follower.begins_step({0}, true, kBudget));
    rank.begin();
    EXPECT_TRUE(rank.train());
    rank.end_step();
  }
  EXPECT_EQ(rank.follower.counters().plans_made, 2);
}

TEST(StepFollower, PartsOfTheVisitUnderWayAreNoVisitsOfTheirOwn) {
  Rank rank;
  for (int step = 0; step < 2; ++step) {
    rank.begin();
    rank.visit({0, 1});
    rank.visit({1});
    rank.visit({2});
    rank.visit({2}, true);
    rank.end_backward();
    rank.end_step();
  }
  ASSERT_NE(rank.follower.latest(), nullptr);
  EXPECT_EQ(rank.follower.latest()->record.visits.size(), 3U);
  EXPECT_EQ(rank.follower.counters().steps_planned, 1);
}

bool know_the_same(const std::vector<Rank>& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [&](const Rank& rank) {
    return rank.follower.fingerprint() == ranks[0].follower.fingerprint();
  });
}

// A training step, as an engine begins it. Returns whether it may follow a plan.
bool begin_together(std::vector<Rank>& ranks) {
  const bool agree = know_the_same(ranks);
  const auto shorter = ranks[0].follower.shorter_step(true);
  const bool all_propose = shorter != 0 &&
      std::all_of(ranks.begin(), ranks.end(), [&](const Rank& rank) {
                             return rank.follower.shorter_step(true) == shorter;
                           });
  for (auto& rank : ranks) {
    rank.gathers.clear();
    if (!agree) {
      rank.follower.forget_plans();
    } else if (all_propose) {
      rank.follower.prefer_shorter_step(true, kBudget);
    }
    rank.follower.begin_step(true, agree);
  }
  return agree;
}

TEST(StepFollower, AStepThatKeepsLeavingOutTheSameGetsItsOwnPlan) {
  std::vector<Rank> ranks(2);
  const auto gathers = [&](bool with_another_forward) {
    EXPECT_TRUE(begin_together(ranks));
    for (auto& rank : ranks) {
      for (UnitId unit = 0; with_another_forward && unit < 4; ++unit) {
        rank.visit({unit});
      }
      rank.train();
      rank.end_step();
    }
    EXPECT_EQ(ranks[0].gathers, ranks[1].gathers);
    return ranks[0].gathers.size();
  };
  gathers(false);
  const auto exact = gathers(false);
  gathers(true);
  for (int step = 0; step < 4; ++step) {
    EXPECT_GT(gathers(false), exact);
  }
  for (int step = 0; step < 6; ++step) {
    EXPECT_EQ(gathers(false), exact);
  }
  EXPECT_EQ(ranks[0].follower.counters().plans_made, 2);
  EXPECT_EQ(ranks[0].follower.counters().deviations, 1);
}

TEST(StepFollower, RanksThatLeaveOutDifferentPartsKeepTheirPlan) {
  // What each rank leaves out in each step: the same for ever, or what they do in turn.
  const std::vector<std::vector<std::set<UnitId>>> programs{
      {{1}, {2}}, {{1}, {}}, {{1}, {2}, {1, 2}}};
  for (const bool in_turn : {false, true}) {
    for (const auto& skipped : programs) {
      std::vector<Rank> ranks(skipped.size());
      for (std::size_t step = 0; step < 20; ++step) {
        EXPECT_TRUE(begin_together(ranks));
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          const auto now = in_turn ? (r + step) % ranks.size() : r;
          ranks[r].train(step == 0 ? std::set<UnitId>() : skipped[now]);
          ranks[r].end_step();
        }
        EXPECT_EQ(ranks[0].gathers, ranks.back().gathers);
      }
      for (const auto& rank : ranks) {
        EXPECT_EQ(rank.follower.counters().steps_planned, 19);
        EXPECT_EQ(rank.follower.counters().plans_made, 1);
      }
    }
  }
}

TEST(StepFollower, RanksThatForgetWhatTheyKnowAgreeAgain) {
  std::vector<Rank> ranks(2);
  const auto step = [&](const std::set<UnitId>& skipped_by_the_last) {
    const bool agree = begin_together(ranks);
    ranks[0].train();
    ranks[1].train(skipped_by_the_last);
    for (auto& rank : ranks) {
      rank.end_step();
    }
    return agree;
  };
  // Backward visits that only one rank recorded lead to different plans.
  EXPECT_TRUE(step({1}));
  EXPECT_FALSE(step({}));
  EXPECT_TRUE(step({}));
  EXPECT_EQ(ranks[0].follower.counters().steps_planned, 1);
  EXPECT_EQ(ranks[1].follower.counters().steps_planned, 1);
}

// Ranks mostly leave out the same, so that they change to the shorter step's plan and away from it.
TEST(StepFollower, RanksThatLeaveOutTheSameByChanceStayTogether) {
  std::int64_t plans_made = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<Rank> ranks(3);
    const auto pick = [&](int n) {
      return std::uniform_int_distribution<int>(0, n - 1)(random);
    };
    for (int step = 0; step < 60; ++step) {
      begin_together(ranks);
      const std::set<UnitId> usual{pick(8) == 0 ? 2 : 1};
      for (auto& rank : ranks) {
        rank.train(step == 0 || pick(20) == 0 ? std::set<UnitId>() : usual);
      }
      const bool together =
          std::all_of(ranks.begin(), ranks.end(), [](const Rank& rank) {
            return rank.follower.following() && !rank.follower.departed();
          });
      for (auto& rank : ranks) {
        if (together) {
          EXPECT_EQ(rank.gathers, ranks[0].gathers);
        }
        rank.end_step();
      }
    }
    plans_made += ranks[0].follower.counters().plans_made;
  }
  EXPECT_GT(plans_made, 200);
}

// Ranks that compare fingerprints and leave out different visits in backward always gather the
// same, and never exceed the budget.
TEST(StepFollower, RanksStayTogetherInRandomPrograms) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<Rank> ranks(3);
    const auto pick = [&](int n) {
      return std::uniform_int_distribution<int>(0, n - 1)(random);
    };
    std::vector<Units> programs(2);
    for (auto& program : programs) {
      for (int i = 0, n = 2 + pick(8); i < n; ++i) {
        program.push_back(pick(4));
      }
    }
    for (int step = 0; step < 8; ++step) {
      const auto& program = programs[static_cast<std::size_t>(pick(2))];
      begin_together(ranks);
      for (auto& rank : ranks) {
        for (const auto unit : program) {
          rank.visit({unit});
        }
        for (auto unit = program.rbegin(); unit != program.rend(); ++unit) {
          if (!rank.follower.following() || pick(3) > 0) {
            rank.visit({*unit}, true);
          }
          ASSERT_TRUE(
              !rank.follower.following() ||
              static_cast<std::int64_t>(rank.whole.size()) <= kBudget);
        }
        rank.end_backward();
      }
      for (auto& rank : ranks) {
        if (rank.follower.following() && ranks[0].follower.following()) {
          EXPECT_EQ(rank.gathers, ranks[0].gathers);
        }
        rank.end_step();
      }
    }
  }
}

}  // namespace
}  // namespace sherd::plan
