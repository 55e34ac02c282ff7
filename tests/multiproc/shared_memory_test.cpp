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

TEST_P(SharedMemory, WritingAfterReadsThatNoBackwardEndedIsAnError) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(4, 6);
    auto fsdp = fully_shard(*model, world, shared());
    AdamW adamw(fsdp.named_parameters(), {});
    loss_of(model, world).backward();
    (void)loss_of(model, world);
    EXPECT_THAT(
        error_of([&] { adamw.step(); }),
        AllOf(
            HasSubstr("read after the last backward"),
            HasSubstr("summon_full_parameters()")));
    // With a backward after it that is another micro-batch.
    loss_of(model, world).backward();
    EXPECT_EQ(error_of([&] { adamw.step(); }), "no error");
    // As does who exchanges weights for their averages, and looks at them.
    {
      const torch::NoGradGuard no_grad;
      (void)loss_of(model, world);
    }
    EXPECT_THAT(
        error_of([&] { fsdp.publish(); }),
        HasSubstr("read after the last backward"));
    {
      auto scope = fsdp.summon_full_parameters();
    }
    EXPECT_EQ(error_of([&] { fsdp.publish(); }), "no error");
  }));
}

TEST_P(SharedMemory, FlagsThatDifferAreNamedHoweverManyParametersThereAre) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(400, 2);
    auto fsdp = fully_shard(*model, world, shared());
    if (world.rank() == 1) {
      model->layer(7).bias.set_requires_grad(false);
    }
    EXPECT_THAT(
        error_of(
            [&] { model->forward(integer_rows(0, 0, 2)).sum().backward(); }),
        HasSubstr("requires_grad of parameter layers.7.bias"));
  }));
}

TEST_P(SharedMemory, ASummonInsideABackwardIsRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(4, 6);
    auto fsdp = fully_shard(*model, world, shared());
    auto loss = loss_of(model, world);
    std::string error;
    loss.register_hook([&](const torch::Tensor& gradient) {
      error = error_of([&] { (void)fsdp.summon_full_parameters(); });
      return gradient;
    });
    loss.backward();
    EXPECT_THAT(error, HasSubstr("inside a backward"));
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    SharedMemory,
    testing::Values(2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
