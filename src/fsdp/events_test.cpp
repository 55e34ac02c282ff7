// SPDX-License-Identifier: Apache-2.0
//
// In which order the engine asks its exchange for things: what is gathered
// when (T26), how often (T27), that gathers and reductions go on beside forward
// and backward (T28), and that room limits what is under way (T33).
#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "fsdp/recording_exchange_testing.h"

namespace sherd::fsdp {
namespace {

using ::testing::ElementsAre;
using testing::Events;
using ::testing::IsEmpty;
using testing::only;
using ::testing::SizeIs;
using testing::train;

constexpr auto kAll = Strategy::kShardGradOp;

// There is room for two layers and the root, which is unit 4. Backward finds the
// last two layers there and reads layer 0 never, because its input needs no
// gradient.
TEST(Events, T26AStepOfFourLayersAndARoot) {
  const auto trained = train({.layers = 4, .steps = 3});
  EXPECT_THAT(
      trained.steps.at(1),
      ElementsAre(
          "start 0", "start 1", "wait 0",   // Visit 0,
          "drop 0", "start 2", "wait 1",    // 1,
          "drop 1", "start 3", "wait 2",    // 2,
          "start 4", "wait 3",              // 3,
          "wait 4",                         // the head.
          "reduce 4", "drop 4",             // Backward.
          "reduce 3", "drop 3", "start 1",  //
          "reduce 2", "drop 2", "wait 1",   //
          "reduce 1", "reduce 0", "end", "drop 1"));
  EXPECT_EQ(trained.steps.at(2), trained.steps.at(1));
}

TEST(Events, T26TheFirstStepKnowsNothingAndGathersOneByOne) {
  const auto events = train({.layers = 4, .steps = 1}).steps.at(0);
  EXPECT_THAT(
      events,
      ElementsAre(
          "start 0", "wait 0", "start 1", "wait 1", "drop 0", "start 2",
          "wait 2", "drop 1", "start 3", "wait 3", "start 4", "wait 4",
          "reduce 4", "reduce 3", "reduce 2", "drop 4", "drop 3", "start 1",
          "wait 1", "reduce 1", "reduce 0", "end", "drop 1", "drop 2"));
}

TEST(Events, AStepThatFollowsAPlanTellsTheExchangeSo) {
  const auto trained = train({.layers = 4, .steps = 3});
  EXPECT_EQ(trained.unplanned.at(0), only(trained.steps.at(0), "start"));
  EXPECT_THAT(trained.unplanned.at(1), IsEmpty());
  EXPECT_THAT(trained.unplanned.at(2), IsEmpty());
}

// The plan of step 0 has a second forward. Steps 1 to 4 leave it out, and gather for it.
TEST(Events, StepsThatLeaveOutTheSameForSomeTimeGetTheirOwnPlan) {
  const auto forward = [](auto& model, auto x, int step) {
    if (step == 0) {
      (void)model->forward(x);
    }
    return model->forward(x).sum();
  };
  const auto exact = train({.layers = 4, .steps = 2}).steps.at(1);
  const auto trained = train({.layers = 4, .steps = 7, .forward = forward});
  for (std::size_t step = 1; step <= 4; ++step) {
    EXPECT_GT(
        only(trained.steps.at(step), "start").size(),
        only(exact, "start").size());
  }
  EXPECT_EQ(trained.steps.at(5), exact);
  EXPECT_EQ(trained.steps.at(6), exact);
  EXPECT_EQ(trained.report.plan.deviations, 0);
  EXPECT_EQ(trained.report.plan.plans_made, 2);
}

// Steps train the layers 2 and 3 or the layers 0 and 1 in turn. Their forwards
// are equal, so each follows the plan of the step before it until backward comes
// to layer 3 or 1, which that plan does not have there.
TEST(Events, AStepThatTakesAnotherPlanInBackwardGathersAsInBackward) {
  const auto trained = train(
      {.layers = 4, .steps = 4, .forward = [](auto& model, auto x, int step) {
         auto one = model->layer(1).forward(model->layer(0).forward(x));
         auto other = model->layer(3).forward(model->layer(2).forward(x));
         auto& untrained = step % 2 == 0 ? one : other;
         untrained = untrained.detach();
         return model->head(one + other).sum();
       }});
  // Step 1 finds no other plan yet, and step 3 is foreseen, because that of step 1 came next before.
  EXPECT_EQ(trained.report.plan.deviations, 2);
  EXPECT_EQ(trained.report.plan.plans_made, 2);
  EXPECT_THAT(trained.unplanned.at(1), ElementsAre("start 1"));
  EXPECT_THAT(trained.unplanned.at(2), IsEmpty());
  EXPECT_THAT(trained.unplanned.at(3), IsEmpty());
  // Step 2 begins with the plan of step 1, which gathers layer 1 ahead.
  EXPECT_THAT(trained.in_backward.at(2), ElementsAre("start 1", "start 3"));
  EXPECT_THAT(trained.in_backward.at(3), ElementsAre("start 1"));
}

// And dropped after its last use, though there were room for it.
TEST(Events, T26WithRoomForAllEachUnitIsGatheredOnce) {
  const auto trained = train({.layers = 3, .steps = 3, .strategy = kAll});
  EXPECT_THAT(
      trained.steps.at(2),
      ElementsAre(
          "start 0", "start 1", "wait 0", "drop 0", "start 2", "wait 1",
          "start 3", "wait 2", "wait 3", "reduce 3", "drop 3", "reduce 2",
          "drop 2", "reduce 1", "reduce 0", "end", "drop 1"));
}

// What the plan gathered for a layer that one step leaves out is dropped unused.
TEST(Events, T26ALayerLeftOutIsGatheredAllTheSame) {
  const auto trained = train(
      {.layers = 4, .steps = 4, .forward = [](auto& model, auto x, int step) {
         for (const std::size_t i : {0, 1, 2, 3}) {
           x = step == 2 && i == 1 ? x : model->layer(i).forward(x);
         }
         return model->head(x).sum();
       }});
  EXPECT_EQ(
      only(trained.steps.at(2), "start"), only(trained.steps.at(1), "start"));
  EXPECT_EQ(trained.steps.at(3), trained.steps.at(1));
  EXPECT_EQ(trained.report.plan.deviations, 0);
}

TEST(Events, T26ALayerThatNobodyUsesIsReducedAndNeverGathered) {
  const auto trained =
      train({.layers = 4, .steps = 3, .forward = [](auto& model, auto x, int) {
               for (const std::size_t i : {0, 1, 3}) {
                 x = model->layer(i).forward(x);
               }
               return model->head(x).sum();
             }});
  for (const auto& events : trained.steps) {
    EXPECT_THAT(only(events, "start 2"), IsEmpty());
    EXPECT_THAT(only(events, "reduce 2"), SizeIs(1));
  }
}

// Layers 1 to 3 are frozen and between what trains, so that backward reads them. They fit, and
// their values outlive a step.
TEST(Events, T26FrozenLayersThatFitAreGatheredInTheFirstStepOnly) {
  const auto trained = train(
      {.layers = 4,
       .steps = 4,
       .strategy = kAll,
       .prepare = [](test::Chain& model) {
         for (const std::size_t i : {1, 2, 3}) {
           for (auto& parameter : model->layer(i).parameters()) {
             parameter.set_requires_grad(false);
           }
         }
       }});
  EXPECT_THAT(only(trained.steps.at(0), "start"), SizeIs(5));
  for (const std::size_t step : {2, 3}) {
    EXPECT_THAT(
        only(trained.steps.at(step), "start"),
        ElementsAre("start 0", "start 4"));
    EXPECT_THAT(only(trained.steps.at(step), "reduce"), SizeIs(2));
  }
}

TEST(Events, EachPassOfAnEvaluationIsAStepBesideAUnitKeptWhole) {
  const auto steps = [](bool keep_whole) {
    return train({
                     .steps = 1,
                     .model_options =
                         {.units = units::with_options(
                              units::children_of_lists(),
                              {.keep_whole = keep_whole})},
                     .forward =
                         [](test::Chain& model, const torch::Tensor& x, int) {
                           for (int pass = 0; pass < 3; ++pass) {
                             const torch::NoGradGuard no_grad;
                             model->forward(x);
                           }
                           return model->forward(x).sum();
                         },
                 })
        .report.plan.steps;
  };
  EXPECT_EQ(steps(false), 4);
  EXPECT_EQ(steps(true), 4);
}

TEST(Events, T27EveryUnitIsReducedOnceAndGatheredAsThePlanSays) {
  for (const int layers : {1, 2, 3, 8}) {
    for (const auto strategy : {Strategy::kFullShard, kAll}) {
      const auto trained =
          train({.layers = layers, .steps = 4, .strategy = strategy});
      const auto units = static_cast<std::size_t>(layers) + 1;
      for (std::size_t step = 1; step < trained.steps.size(); ++step) {
        const auto& events = trained.steps[step];
        EXPECT_THAT(only(events, "reduce"), SizeIs(units));
        EXPECT_THAT(
            only(events, "start"),
            SizeIs(static_cast<std::size_t>(trained.report.plan.gathers)));
        EXPECT_THAT(only(events, "end"), SizeIs(1));
      }
      if (strategy == kAll) {
        EXPECT_EQ(trained.report.plan.gathers, layers + 1);
      }
    }
  }
}

TEST(Events, T28FromTheSecondStepOnAGatherStartsBeforeTheOneBeforeIsWaitedFor) {
  const auto trained = train({.layers = 6, .steps = 4});
  for (std::size_t step = 1; step < trained.steps.size(); ++step) {
    // In the forward; later some units are still whole, and no gather waits.
    const auto& events = trained.steps[step];
    for (UnitId unit = 0; unit < 6; ++unit) {
      const auto at = [&](const std::string& event) {
        return std::find(events.begin(), events.end(), event);
      };
      const auto waited = at(str("wait ", unit));
      EXPECT_NE(waited, events.end());
      EXPECT_LT(at(str("start ", unit + 1)), waited) << "of step " << step;
    }
  }
}

TEST(Events, T28ReductionsStartWhileBackwardStillGathers) {
  for (const auto& events : train({.layers = 6, .steps = 3}).steps) {
    const auto reduces = [](const std::string& event) {
      return event.starts_with("reduce");
    };
    const auto first = std::find_if(events.begin(), events.end(), reduces);
    const auto end = std::find(events.begin(), events.end(), "end");
    ASSERT_NE(end, events.end());
    EXPECT_TRUE(std::any_of(first, end, [](const std::string& event) {
      return event.starts_with("wait");
    }));
    EXPECT_TRUE(std::none_of(end, events.end(), reduces));
  }
}

// There is room for two layers and the root: layers 2 to 7 in forward and 5 to 1
// in backward have to wait until another was dropped; layers 0 and 1 and the
// root do not.
TEST(Events, T33GathersAheadWaitForRoomAndNoneIsMoreThanOneVisitAhead) {
  const auto trained = train({.layers = 8, .steps = 3});
  const auto& events = trained.steps.at(2);
  int under_way = 0;
  int held_back = 0;
  for (std::size_t i = 0; i < events.size(); ++i) {
    under_way += events[i].starts_with("start") ? 1 : 0;
    under_way -= events[i].starts_with("wait") ? 1 : 0;
    EXPECT_LE(under_way, 2) << "at " << i;
    held_back += i > 0 && events[i].starts_with("start") &&
            events[i - 1].starts_with("drop")
        ? 1
        : 0;
  }
  EXPECT_EQ(held_back, 6 + 5);
}

// How many units are waited for between the start of a gather and its own wait, at most.
std::ptrdiff_t waits_ahead(const Events& events) {
  std::ptrdiff_t most = 0;
  for (auto start = events.begin(); start != events.end(); ++start) {
    if (!start->starts_with("start")) {
      continue;
    }
    const auto own = std::find(start, events.end(), "wait" + start->substr(5));
    most =
        std::max(most, std::count_if(start, own, [](const std::string& event) {
                   return event.starts_with("wait");
                 }));
  }
  return most;
}

TEST(Events, B14APlanGathersAsManyVisitsAheadAsAsked) {
  std::int64_t budget = 0;
  for (const int visits : {0, 1, 2, 3}) {
    const auto trained =
        train({.layers = 8, .steps = 3, .prefetch_visits = visits});
    EXPECT_EQ(waits_ahead(trained.steps.at(0)), 0);  // On demand.
    EXPECT_EQ(waits_ahead(trained.steps.at(2)), visits);
    EXPECT_EQ(trained.report.plan.steps_planned, 2);
    // There is room for one more unit each time.
    EXPECT_GT(trained.report.budget_bytes, budget);
    EXPECT_LE(trained.report.unsharded_bytes_peak, trained.report.budget_bytes);
    budget = trained.report.budget_bytes;
  }
}

}  // namespace
}  // namespace sherd::fsdp
