// SPDX-License-Identifier: Apache-2.0
//
// A replica that dies is named by all others, who may train on without it (T62).
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <csignal>
#include <gmock/gmock.h>
#include <sherd/ddp/replicate.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "world/world_impl.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::size_t kDepth = 3;

struct ReplicaKill {
  int ranks;
  const char* point;
};

class KilledReplica : public ::testing::TestWithParam<ReplicaKill> {};

void step(
    Chain& model,
    int batch,
    int rank,
    const std::function<void(std::string)>& reach) {
  auto x = integer_rows(batch, rank, 6).requires_grad_();
  reach("forward");
  for (std::size_t i = 0; i < kDepth; ++i) {
    x = model->layer(i).forward(x).clamp(-2, 2);
    x.register_hook([&reach, i](const torch::Tensor&) {
      reach("backward of layer " + std::to_string(i));
    });
  }
  model->head(x).sum().backward();
  reach("step");
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    if (parameter.grad().defined()) {
      parameter.sub_(parameter.grad().sign());
      parameter.mutable_grad().reset();
    }
  }
}

TEST_P(KilledReplica, T62IsNamedByTheOthersWhoTrainOn) {
  const auto given = GetParam();
  const int victim = given.ranks - 1;
  RankOptions options;
  options.close_world = false;
  options.strikes = {
      {.child = victim, .point = given.point, .signal = SIGKILL}};
  const auto report = run_ranks(
      given.ranks,
      [&](World world, Rank& self) {
        Chain model(static_cast<int>(kDepth), 6);
        auto ddp = replicate(
            *model, world, {.bucket_bytes = 100, .first_bucket_bytes = 8});
        const auto error = error_of([&] {
          for (int batch = 0; batch < 4; ++batch) {
            step(model, batch, world.rank(), [&](const std::string& point) {
              if (batch == 1) {
                self.reach(point);
              }
            });
          }
        });
        EXPECT_THAT(error, HasSubstr("rank " + std::to_string(victim)));
        const auto fewer = World::from_store(
            c10::make_intrusive<c10d::PrefixStore>(
                "fewer", world.impl()->store),
            world.rank(), given.ranks - 1, world.options());
        ddp.set_world(fewer);
        for (int batch = 4; batch < 6; ++batch) {
          step(model, batch, world.rank(), [](const std::string&) {});
        }
        double sum = 0;
        for (const auto& parameter : model->parameters()) {
          sum += parameter.detach().sum().item<double>();
        }
        for (const auto& other : fewer.all_gather({sum})) {
          EXPECT_EQ(other[0], sum);
        }
        EXPECT_EQ(ddp.report().world_size, given.ranks - 1);
      },
      options);
  for (int rank = 0; rank < given.ranks; ++rank) {
    if (rank == victim) {
      EXPECT_EQ(report[rank].signal, SIGKILL);
    } else {
      EXPECT_EQ(report[rank].exit_code, 0)
          << "rank " << rank << ", signal " << report[rank].signal << ":\n"
          << report[rank].output;
      EXPECT_LT(report.after_strike(rank), 5s) << "rank " << rank;
    }
  }
}

std::vector<ReplicaKill> replica_kills() {
  std::vector<ReplicaKill> kills;
  for (const char* point :
       {"forward", "backward of layer 2", "backward of layer 0", "step"}) {
    kills.push_back({3, point});
    kills.push_back({4, point});
  }
  kills.push_back({2, "backward of layer 1"});
  return kills;
}

INSTANTIATE_TEST_SUITE_P(
    Moments,
    KilledReplica,
    ::testing::ValuesIn(replica_kills()),
    [](const ::testing::TestParamInfo<ReplicaKill>& tested) {
      std::string name = "Of" + std::to_string(tested.param.ranks);
      for (const char* c = tested.param.point; *c != '\0'; ++c) {
        name += *c == ' ' ? '_' : *c;
      }
      return name;
    });

}  // namespace
}  // namespace sherd::test
