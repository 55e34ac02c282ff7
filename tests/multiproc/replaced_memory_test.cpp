// SPDX-License-Identifier: Apache-2.0
//
// torch::load(), set_data() and the like, which give parameters other memory, inside
// summon_full_parameters() (T43).
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <functional>
#include <sstream>
#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using testing::HasSubstr;

class ReplacedMemory : public testing::TestWithParam<int> {};

torch::Tensor summed_loss(Chain& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, 6)).sum();
}

// Ways to write all parameters that give them other memory.
const std::vector<std::function<void(Chain&, Chain&)>> kReplacements = {
    [](Chain& to, Chain& from) {
      std::stringstream file;
      torch::save(from, file);
      torch::load(to, file);
    },
    [](Chain& to, Chain& from) {
      torch::nn::utils::vector_to_parameters(
          torch::nn::utils::parameters_to_vector(from->parameters()).clone(),
          to->parameters());
    },
    [](Chain& to, Chain& from) {
      for (auto& item : to->named_parameters()) {
        item.value().set_data(
            from->named_parameters()[item.key()].detach().t().clone().t());
      }
    }};

TEST_P(ReplacedMemory, T43IsAWrite) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      for (const auto& replace : kReplacements) {
        Chain reference(3, 6), model(3, 6);
        {
          const torch::NoGradGuard no_grad;
          for (auto& parameter : reference->parameters()) {
            parameter.mul_(2).add_(1);
          }
        }
        auto fsdp = fully_shard(*model, world, {.strategy = strategy});
        {
          const torch::NoGradGuard no_grad;
          auto scope = fsdp.summon_full_parameters();
          replace(model, reference);
          const auto x = integer_rows(0, world.rank(), 6);
          expect_close(
              model->forward(x), reference->forward(x), 0.0, "in the scope");
          scope.close();
        }
        const auto leaves = unique_parameters(*reference);
        expect_parameters(leaves, *model, fsdp, 0.0);
        const auto step_reference = sign_steps()(tensors_of(leaves));
        const auto step_shards = sign_steps()(fsdp.parameters());
        for (int step = 0; step < 2; ++step) {
          reference_backward<Chain>(
              reference, leaves, summed_loss, step, world);
          summed_loss(model, step, world.rank()).backward();
          step_reference();
          step_shards();
          fsdp.publish();
          expect_parameters(leaves, *model, fsdp, 0.0);
        }
      }
    }
  }));
}

TEST_P(ReplacedMemory, T43ThatDoesNotFitIsAnError) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(3, 6);
    auto fsdp = fully_shard(*model, world);
    auto scope = fsdp.summon_full_parameters();
    model->layer(1).bias.set_data(torch::zeros({5}));
    EXPECT_THAT(
        error_of([&] { scope.close(); }),
        HasSubstr("parameter layers.1.bias was replaced inside "
                  "summon_full_parameters() (torch::load(), set_data() or the "
                  "like): expected Float [6] on cpu, found Float [5] on cpu"));
  }));
}

TEST_P(ReplacedMemory, T43UnderMixedPrecision) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference(3, 6), model(3, 6);
    FullyShardOptions options;
    options.mixed_precision.param_dtype = torch::kBFloat16;
    auto fsdp = fully_shard(*model, world, options);
    {
      const torch::NoGradGuard no_grad;
      reference->layer(1).bias.fill_(0.5);
      const auto scope = fsdp.summon_full_parameters();
      model->layer(1).bias.set_data(torch::full({6}, 0.5, torch::kBFloat16));
    }
    expect_parameters(unique_parameters(*reference), *model, fsdp, 0.0);
    {
      const auto scope = fsdp.summon_full_parameters({.full_precision = true});
      EXPECT_THAT(
          error_of([&] { kReplacements[0](model, reference); }),
          HasSubstr("inside summon_full_parameters({.full_precision = true}); "
                    "copy its value into scope.tensor(name)"));
    }
    expect_parameters(unique_parameters(*reference), *model, fsdp, 0.0);
  }));
}

TEST_P(ReplacedMemory, T43InAReadOnlyScopeIsAnError) {
  if (GetParam() == 1) {
    return;  // There the parameters are the model's own.
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(3, 6), other(3, 6);
    auto fsdp = fully_shard(*model, world);
    auto scope = fsdp.summon_full_parameters({.read_only = true});
    EXPECT_THAT(
        error_of([&] { kReplacements[0](model, other); }),
        HasSubstr("the summon scope was opened read_only"));
    kReplacements[2](model, other);
    EXPECT_THAT(
        error_of([&] { scope.close(); }),
        HasSubstr("parameter layers.0.weight was given another storage"));
  }));
}

INSTANTIATE_TEST_SUITE_P(Worlds, ReplacedMemory, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace sherd::test
