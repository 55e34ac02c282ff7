// SPDX-License-Identifier: Apache-2.0
//
// What is special about ranks that share memory: they may visit what others do
// not, and read between backward and step what others write.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

FullyShardOptions shared() {
  FullyShardOptions options;
  options.exchange = ExchangeKind::kSharedMemory;
  return options;
}

torch::Tensor loss_of(Chain& model, const World& world) {
  return model->forward(integer_rows(0, world.rank(), 6)).sum();
}

class SharedMemory : public testing::TestWithParam<int> {};

TEST_P(SharedMemory, OneRankEvaluatesAlone) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(4, 6);
    auto fsdp = fully_shard(*model, world, shared());
    AdamW adamw(fsdp.named_parameters(), {});
    for (int step = 0; step < 3; ++step) {
      loss_of(model, world).backward();
      adamw.step();
      adamw.zero_grad();
      if (world.rank() == step % world.size()) {
        const torch::NoGradGuard no_grad;
        EXPECT_TRUE(loss_of(model, world).isfinite().item<bool>());
      }
    }
    EXPECT_EQ(fsdp.report().budget_bytes, 0);
  }));
}

TEST_P(SharedMemory, ReadingBetweenBackwardAndStepIsAnError) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(4, 6);
    auto fsdp = fully_shard(*model, world, shared());
    AdamW adamw(fsdp.named_parameters(), {});
    loss_of(model, world).backward();
    (void)loss_of(model, world);
    EXPECT_THAT(
        error_of([&] { adamw.step(); }),
        AllOf(
            HasSubstr("between a backward and the optimizer step"),
            HasSubstr("summon_full_parameters()")));
    // With a backward after it that is another micro-batch.
    loss_of(model, world).backward();
    EXPECT_EQ(error_of([&] { adamw.step(); }), "no error");
  }));
}

TEST_P(SharedMemory, WhatItCannotDoIsRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(4, 6);
    auto options = shared();
    options.strategy = Strategy::kNoShard;
    EXPECT_THAT(
        error_of([&] { (void)fully_shard(*model, world, options); }),
        HasSubstr("expected a strategy that shards"));
    options = shared();
    options.budget_bytes = 1 << 20;
    EXPECT_THAT(
        error_of([&] { (void)fully_shard(*model, world, options); }),
        HasSubstr("no byte budget"));
  }));
}

INSTANTIATE_TEST_SUITE_P(Worlds, SharedMemory, testing::Values(2, 3, 4));

}  // namespace
}  // namespace sherd::test
