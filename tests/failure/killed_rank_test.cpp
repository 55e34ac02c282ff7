// SPDX-License-Identifier: Apache-2.0
//
// A rank killed at any moment of a training step: every other rank ends long
// before the deadline of its waits, with an error that names it.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

struct KillCase {
  int ranks;
  int victim;
  const char* point;
  int replicas = 1;
};

constexpr std::size_t kLayers = 4;

// Trains for a few steps and says at every moment where it is; the first step
// is before the points, so that all connections are warm.
void train(Chain& model, FullyShardedDataParallel& fsdp, Rank& self, int rank) {
  for (int step = 0; step < 4; ++step) {
    const auto reach = [&self, step](const std::string& point) {
      if (step == 1) {
        self.reach(point);
      }
    };
    reach("before forward");
    auto x = integer_rows(step, rank, 6);
    for (std::size_t i = 0; i < kLayers; ++i) {
      const auto layer = "layer " + std::to_string(i);
      reach("forward of " + layer);
      x = model->layer(i).forward(x).clamp(-2, 2);
      x.register_hook([reach, layer](const torch::Tensor& gradient) {
        reach("backward of " + layer);
        return gradient;
      });
    }
    auto loss = model->head(x).sum();
    reach("before backward");
    loss.backward();
    reach("before clip");
    fsdp.clip_grad_norm(1.0);
    reach("before step");
    sign_steps()(fsdp.parameters())();
    fsdp.publish();
    reach("before summon");
    {
      auto scope = fsdp.summon_full_parameters({.read_only = true});
      reach("in summon");
    }
    reach("after step");
  }
}

class KilledRank : public testing::TestWithParam<KillCase> {};

TEST_P(KilledRank, IsNamedByAllOthersLongBeforeTheDeadline) {
  const auto given = GetParam();
  RankOptions options;
  options.close_world = false;
  options.strikes = {
      {.child = given.victim, .point = given.point, .signal = SIGKILL}};
  const auto report = run_ranks(
      given.ranks,
      [&](World world, Rank& self) {
        Chain model(kLayers, 6);
        FullyShardOptions shard;
        shard.budget_bytes = 512;
        auto fsdp = fully_shard(
            *model, Mesh(world, {.replicate = given.replicas}), shard);
        const auto error =
            error_of([&] { train(model, fsdp, self, world.rank()); });
        EXPECT_THAT(error, HasSubstr("rank " + std::to_string(given.victim)));
      },
      options);
  for (int rank = 0; rank < given.ranks; ++rank) {
    if (rank == given.victim) {
      EXPECT_EQ(report[rank].signal, SIGKILL);
    } else {
      EXPECT_EQ(report[rank].exit_code, 0)
          << "rank " << rank << ", signal " << report[rank].signal << ":\n"
          << report[rank].output;
      EXPECT_LT(report.after_strike(rank), 10s) << "rank " << rank;
    }
  }
}

std::vector<KillCase> kill_cases() {
  std::vector<KillCase> cases;
  for (const char* point :
       {"before forward", "forward of layer 0", "forward of layer 2",
        "before backward", "backward of layer 3", "backward of layer 0",
        "before clip", "before step", "before summon", "in summon",
        "after step"}) {
    cases.push_back({2, 1, point});
    cases.push_back({3, 0, point});  // The one with the store.
    cases.push_back({4, 2, point});
    cases.push_back({4, 3, point, 2});  // Rank 0 shares no axis with it.
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(
    Moments,
    KilledRank,
    testing::ValuesIn(kill_cases()),
    [](const testing::TestParamInfo<KillCase>& tested) {
      std::string name = "Rank" + std::to_string(tested.param.victim) + "Of" +
          std::to_string(tested.param.ranks) +
          (tested.param.replicas > 1 ? "InTwoReplicas" : "");
      for (const char* c = tested.param.point; *c != '\0'; ++c) {
        name += *c == ' ' ? '_' : *c;
      }
      return name;
    });

// ---- other ways to leave ----

class LostRank : public testing::TestWithParam<int> {
 protected:
  // The last rank leaves after one step; what it does is `leave`.
  void expect_named(const std::function<void(Chain&)>& leave, int exit_code) {
    const int ranks = GetParam();
    RankOptions options;
    options.close_world = false;
    const auto report = run_ranks(
        ranks,
        [&](World world) {
          Chain model(kLayers, 6);
          auto fsdp = fully_shard(*model, world);
          const auto loss = [&](int batch) {
            return model->forward(integer_rows(batch, world.rank(), 6)).sum();
          };
          loss(0).backward();
          let_others_pass(world, ranks - 1);
          if (world.rank() == ranks - 1) {
            leave(model);
            return;
          }
          const auto error = error_of([&] {
            for (int batch = 1; batch < 5; ++batch) {
              loss(batch).backward();
            }
          });
          EXPECT_THAT(error, HasSubstr("rank " + std::to_string(ranks - 1)));
        },
        options);
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(report[rank].exit_code, rank == ranks - 1 ? exit_code : 0)
          << "rank " << rank << ":\n"
          << report[rank].output;
    }
  }
};

TEST_P(LostRank, AnExceptionThatEndsARankIsNamed) {
  expect_named([](Chain&) { throw std::runtime_error("out of luck"); }, 3);
}

TEST_P(LostRank, AnExceptionInTheMiddleOfAForwardIsNamed) {
  expect_named(
      [](Chain& model) {
        model->layer(0).forward(integer_rows(1, 0, 6));
        throw std::runtime_error("out of luck");
      },
      3);
}

TEST_P(LostRank, ARankThatStopsEarlyIsNamed) {
  expect_named([](Chain&) {}, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    LostRank,
    testing::Values(2, 3, 4),
    testing::PrintToStringParamName());

// A survivor can still ask, close and end in order.
TEST(AfterALoss, TheHandleKeepsItsFirstErrorAndClosesQuietly) {
  RankOptions options;
  options.close_world = false;
  options.strikes = {{.child = 1, .point = "here", .signal = SIGKILL}};
  const auto report = run_ranks(
      2,
      [&](World world, Rank& self) {
        Chain model(kLayers, 6);
        auto fsdp = fully_shard(*model, world);
        let_others_pass(world, 1);
        if (world.rank() == 1) {
          self.reach("here");
        }
        const auto forward = [&] {
          model->forward(integer_rows(0, 0, 6)).sum().backward();
        };
        const auto first = error_of(forward);
        EXPECT_THAT(first, HasSubstr("rank 1"));
        EXPECT_EQ(error_of(forward), first);
        EXPECT_EQ(error_of([&] { fsdp.publish(); }), first);
        EXPECT_EQ(error_of([&] { fsdp.clip_grad_norm(1); }), first);
        EXPECT_EQ(fsdp.report().units, 5);
        EXPECT_EQ(error_of([&] { fsdp.close(); }), "no error");
      },
      options);
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
}

// Its end gathers what was written from the ranks of the other replica, of which
// one is lost.
class ScopeWithoutAPeer : public testing::TestWithParam<bool> {};

TEST_P(ScopeWithoutAPeer, EndsWithAnErrorThatTheNextCallHas) {
  const bool close = GetParam();
  RankOptions options;
  options.close_world = false;
  options.strikes = {{.child = 3, .point = "in scope", .signal = SIGKILL}};
  const auto report = run_ranks(
      4,
      [&](World world, Rank& self) {
        Chain model(kLayers, 6);
        FullyShardOptions shard;
        shard.optimizer_axes = OptimizerAxes::kBoth;
        auto fsdp = fully_shard(*model, Mesh(world, {.replicate = 2}), shard);
        std::string at_end = "no error";
        {
          auto scope = fsdp.summon_full_parameters();
          self.reach("in scope");
          if (close) {
            at_end = error_of([&] { scope.close(); });
          }
        }
        if (world.rank() == 1) {  // The same shard in the other replica.
          EXPECT_THAT(at_end, HasSubstr(close ? "rank 3" : "no error"));
        }
        const auto next = error_of(
            [&] { model->forward(integer_rows(0, 0, 6)).sum().backward(); });
        EXPECT_THAT(next, HasSubstr("rank 3"));
        EXPECT_EQ(error_of([&] { fsdp.clip_grad_norm(1); }), next);
      },
      options);
  EXPECT_EQ(report[3].signal, SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(report[rank].exit_code, 0)
        << "rank " << rank << ", signal " << report[rank].signal << ":\n"
        << report[rank].output;
    EXPECT_LT(report.after_strike(rank), 10s) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    WhereItEnds,
    ScopeWithoutAPeer,
    testing::Bool(),
    [](const testing::TestParamInfo<bool>& tested) {
      return tested.param ? "InClose" : "InTheDestructor";
    });

}  // namespace
}  // namespace sherd::test
