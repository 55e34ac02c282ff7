// SPDX-License-Identifier: Apache-2.0
//
// Handles and worlds that are closed in order: too early for the others, who
// must hear of it, or before another world of the same processes.
#include "base/check.h"
#include "support/delay.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <cstdlib>
#include <memory>
#include <optional>
#include <vector>
#include <gmock/gmock.h>
#include <sherd/ddp/replicate.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/adamw.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "world/world_impl.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class EarlyClose : public ::testing::TestWithParam<ExchangeKind> {};

// What outlives a world, as variables of main() do.
struct Job {
  World world;
  Chain model{3, 6};
  torch::nn::BatchNorm1d norm{6};  // Its buffers travel, too.
  std::optional<FullyShardedDataParallel> fsdp{};
  std::optional<DistributedDataParallel> ddp{};
};

double train_sharded(Job& job, ExchangeKind kind, int steps) {
  auto& [world, model, norm, fsdp, ddp] = job;
  FullyShardOptions options;
  options.exchange = kind;
  fsdp.emplace(fully_shard(*model, world, options));
  AdamW adamw(fsdp->named_parameters(), {});
  double last = 0;
  for (int step = 0; step < steps; ++step) {
    const auto loss = model->forward(integer_rows(step, world.rank(), 6)).sum();
    loss.backward();
    adamw.step();
    adamw.zero_grad();
    last = loss.item<double>();
  }
  fsdp->close();
  world.close();
  return last;
}

void train_replicated(Job& job, ExchangeKind kind, int steps) {
  auto& [world, model, norm, fsdp, ddp] = job;
  model->register_module("norm", norm);
  ReplicateOptions options;
  options.exchange = kind;
  ddp.emplace(replicate(*model, world, options));
  for (int step = 0; step < steps; ++step) {
    model->forward(norm(integer_rows(step, world.rank(), 6))).sum().backward();
    for (auto& parameter : model->parameters()) {
      parameter.mutable_grad().reset();
    }
  }
  ddp->close();
  world.close();
}

// No process ends and no deadline passes, which would tell the others as well.
TEST_P(EarlyClose, ARankThatMakesOneStepFewerIsNamedByTheOthersAtOnce) {
  expect_all_ok(run_ranks(3, [](World outer) {
    for (const bool sharded : {true, false}) {
      SCOPED_TRACE(sharded ? "fully_shard" : "replicate");
      {
        Job job{World::from_store(
            c10::make_intrusive<c10d::PrefixStore>(
                sharded ? "sharded" : "replicated", outer.impl()->store),
            outer.rank(), outer.size(), {.deadline = 10min})};
        const int steps = outer.rank() == 1 ? 2 : 3;
        const auto error = error_of([&] {
          if (sharded) {
            (void)train_sharded(job, GetParam(), steps);
          } else {
            train_replicated(job, GetParam(), steps);
          }
        });
        if (outer.rank() != 1) {
          EXPECT_THAT(error, HasSubstr("rank 1 "));
        }
      }
      outer.barrier();
    }
  }));
}

TEST_P(EarlyClose, ProcessesThatHaveClosedTheirWorldTrainInAnother) {
  for (const int w : {1, 2, 3}) {
    const int port = free_port();
    expect_all_ok(run_processes(w, [&](int rank, Rank&) {
      ::setenv("RANK", str(rank).c_str(), 1);
      ::setenv("WORLD_SIZE", str(w).c_str(), 1);
      ::setenv("LOCAL_RANK", str(rank).c_str(), 1);
      ::setenv("LOCAL_WORLD_SIZE", str(w).c_str(), 1);
      ::setenv("MASTER_ADDR", "127.0.0.1", 1);
      ::setenv("MASTER_PORT", str(port).c_str(), 1);
      std::vector<std::unique_ptr<Job>> kept;
      std::vector<double> losses;
      for (int i = 0; i < 3; ++i) {
        kept.push_back(std::make_unique<Job>(
            Job{World::from_environment(test_world_options())}));
        losses.push_back(train_sharded(*kept.back(), GetParam(), 2));
        be_late(rank == i % w ? 30ms : 0ms);
      }
      EXPECT_EQ(losses[0], losses[1]);
      EXPECT_EQ(losses[0], losses[2]);
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(
    By,
    EarlyClose,
    ::testing::Values(ExchangeKind::kSharedMemory, ExchangeKind::kCollective),
    [](const auto& given) {
      return given.param == ExchangeKind::kCollective ? "Messages"
                                                      : "SharedMemory";
    });

}  // namespace
}  // namespace sherd::test
