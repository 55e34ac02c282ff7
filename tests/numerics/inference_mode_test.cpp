// SPDX-License-Identifier: Apache-2.0
//
// Evaluation under c10::InferenceMode: the thread that gathers is not in that mode, and the step after
// the evaluation trains with the same memory.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

namespace sherd::test {
namespace {

void expect_trains_after_evaluation(
    const World& world, const FullyShardOptions& options) {
  Chain model(2, 20);
  auto fsdp = fully_shard(*model, world, options);
  const auto loss = [&] {
    return model->forward(integer_rows(0, world.rank(), 20)).sum();
  };
  torch::Tensor evaluated;
  {
    const c10::InferenceMode inference;
    evaluated = loss();
  }
  const auto trained = loss();
  trained.backward();
  EXPECT_EQ(evaluated.item<float>(), trained.item<float>());
}

TEST(InferenceMode, AnEvaluationUnderItIsThatOfTraining) {
  for (const int ranks : {1, 3}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      for (const auto exchange :
           {ExchangeKind::kCollective, ExchangeKind::kSharedMemory}) {
        expect_trains_after_evaluation(world, {.exchange = exchange});
        expect_trains_after_evaluation(
            world, {.exchange = exchange, .gather_hook = quantise_gathers()});
      }
    }));
  }
}

}  // namespace
}  // namespace sherd::test
