// SPDX-License-Identifier: Apache-2.0
//
// Regions that are computed a second time in backward, wherever their borders
// lie beside those of units: the same numbers, planned steps, few gathers (T08).
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/reentrant.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

#include <thread>
#include <gmock/gmock.h>
#include <sherd/fsdp/activation_checkpointing.h>
#include "exchange/exchange.h"

namespace sherd::test {
namespace {

class Checkpoints : public testing::TestWithParam<int> {};

// Where regions begin and end; a unit is a pair of layers.
enum class Regions {
  kNone,
  kLayers,    // Two inside each unit.
  kUnits,     // One a unit.
  kTwoUnits,  // Across the border of units.
  kNested,    // Each unit within one of all.
};

struct PairImpl : torch::nn::Module {
  torch::Tensor first, second;
  // `tied` is its first weight too, where defined.
  explicit PairImpl(const torch::Tensor& tied) {
    first = register_parameter(
        "first", tied.defined() ? tied : torch::ones({6, 6}));
    second = register_parameter("second", torch::ones({6, 6}));
  }
};
TORCH_MODULE(Pair);

// Four pairs without anything of their own above them; ReLU keeps integers.
struct PairsImpl : torch::nn::Module {
  torch::nn::ModuleList pairs;
  Regions regions;
  PairsImpl(Regions where, bool tied) : regions(where) {
    register_module("pairs", pairs);
    for (int i = 0; i < 4; ++i) {
      pairs->push_back(Pair(tied && i == 3 ? pair(0)->first : torch::Tensor()));
    }
    fill_with_integers(*this);
  }

  std::shared_ptr<PairImpl> pair(std::size_t i) {
    return pairs->ptr<PairImpl>(i);
  }

  template <typename Function>
  static torch::Tensor run(
      bool region, const Function& fn, const torch::Tensor& x) {
    return region ? checkpoint(fn, x) : fn(x);
  }

  static torch::Tensor multiply(
      Regions regions, const torch::Tensor& weight, const torch::Tensor& x) {
    return run(
        regions == Regions::kLayers,
        [weight](const torch::Tensor& in) {
          return torch::relu(in.mm(weight)).clamp(-2, 2);
        },
        x);
  }

  torch::Tensor forward_pair(std::size_t i, const torch::Tensor& x) {
    return run(
        regions == Regions::kUnits || regions == Regions::kNested,
        [pair = pair(i), where = regions](const torch::Tensor& in) {
          return multiply(
              where, pair->second, multiply(where, pair->first, in));
        },
        x);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    return run(
        regions == Regions::kNested,
        [self = std::dynamic_pointer_cast<PairsImpl>(shared_from_this())](
            torch::Tensor x) {
          for (std::size_t i = 0; i < 4; i += 2) {
            x = run(
                self->regions == Regions::kTwoUnits,
                [self, i](const torch::Tensor& in) {
                  return self->forward_pair(i + 1, self->forward_pair(i, in));
                },
                x);
          }
          return x;
        },
        input);
  }
};
TORCH_MODULE(Pairs);

// First the reference, which keeps its activations.
std::function<Pairs()> pairs_with(Regions regions, bool tied = false) {
  return [regions, tied, made = 0]() mutable {
    return Pairs(made++ == 0 ? Regions::kNone : regions, tied);
  };
}

torch::Tensor pairs_loss(Pairs& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, 6)).sum();
}

std::int64_t bytes_of_a_unit(const World& world) {
  const auto units =
      fsdp::build_units(*Pairs(Regions::kNone, false), world.size());
  return exchange::unit_bytes(units.units.front());
}

std::vector<FullyShardOptions> several(const World& world) {
  std::vector<FullyShardOptions> all(5);
  all[1].budget_bytes = 2 * bytes_of_a_unit(world);  // Evicts all the time.
  all[2].strategy = Strategy::kShardGradOp;
  all[3].strategy = Strategy::kNoShard;
  all[4].units = units::none();
  return all;
}

constexpr auto kAllRegions = {
    Regions::kLayers, Regions::kUnits, Regions::kTwoUnits, Regions::kNested};

TEST_P(Checkpoints, T08InsideAndAcrossUnitsAreEqualInBits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto regions : kAllRegions) {
      for (const auto& shard : several(world)) {
        RankParity options;
        options.shard = shard;
        expect_rank_parity<Pairs>(
            world, pairs_with(regions), pairs_loss, options);
      }
    }
  }));
}

TEST_P(Checkpoints, T08TiedWeightsAcrossRegionsAreEqualInBits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto regions : kAllRegions) {
      for (const auto& shard : several(world)) {
        RankParity options;
        options.shard = shard;
        expect_rank_parity<Pairs>(
            world, pairs_with(regions, /*tied=*/true), pairs_loss, options);
      }
    }
  }));
}

TEST_P(Checkpoints, T08MicroBatchesAndBackwardOnAnotherThread) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto regions : kAllRegions) {
      Pairs reference(Regions::kNone, false);
      Pairs model(regions, false);
      const auto leaves = unique_parameters(*reference);
      const Slicing slicing(*reference, world, {});
      auto fsdp = fully_shard(*model, world);
      for (int batch = 0; batch < 4; ++batch) {
        reference_backward<Pairs>(reference, leaves, pairs_loss, batch, world);
        const auto loss = pairs_loss(model, batch, world.rank());
        std::optional<NoSyncScope> scope;
        if (batch % 2 == 0) {
          scope.emplace(fsdp.no_sync());
        }
        std::string error;
        std::thread([&] { error = error_of([&] { loss.backward(); }); }).join();
        EXPECT_EQ(error, "no error");
      }
      // Sums of four backwards; a third is no fp32 number.
      expect_gradients(slicing, leaves, fsdp, world.size() == 3 ? 1e-5 : 0.0);
    }
  }));
}

// Of each step after the first, with room for one unit.
std::int64_t gathers_a_step(const World& world, Regions regions) {
  constexpr int kSteps = 4;
  Pairs model(regions, false);
  auto options = over_messages();
  options.budget_bytes = bytes_of_a_unit(world);
  auto fsdp = fully_shard(*model, world, options);
  const auto step = sign_steps()(fsdp.parameters());
  std::int64_t first = 0;
  for (int batch = 0; batch < kSteps; ++batch) {
    pairs_loss(model, batch, world.rank()).backward();
    step();
    fsdp.publish();
    first = batch == 0 ? fsdp.report().unshards : first;
  }
  const auto report = fsdp.report();
  // The second run's visits are visits like all others.
  EXPECT_EQ(report.plan.steps, kSteps);
  EXPECT_EQ(report.plan.steps_planned, kSteps - 1);
  EXPECT_EQ(report.plan.plans_made, 1);
  EXPECT_EQ(report.plan.deviations, 0);
  EXPECT_EQ(report.unshards - first, (kSteps - 1) * report.plan.gathers);
  return report.plan.gathers;
}

TEST_P(Checkpoints, T08InsideAUnitOneGatherServesRecomputingAndBackward) {
  if (GetParam() == 1) {
    return;  // Nothing is gathered.
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    constexpr int kUnits = 4;
    // Each in forward, each but the last one in backward.
    constexpr int kPlain = 2 * kUnits - 1;
    EXPECT_EQ(gathers_a_step(world, Regions::kNone), kPlain);
    EXPECT_EQ(gathers_a_step(world, Regions::kLayers), kPlain);
    EXPECT_EQ(gathers_a_step(world, Regions::kUnits), kPlain);
    // A region of two gathers both, and its first again for its backward.
    EXPECT_EQ(
        gathers_a_step(world, Regions::kTwoUnits), kUnits + 3 * kUnits / 2);
  }));
}

models::Gpt gpt() { return small_gpt({.dropout = 0.2}); }
models::Llama llama() { return small_llama({}); }

// Either decoder, every second layer or all, and dropout.
template <typename Model>
void expect_layers_of(
    const World& world, const std::function<Model()>& make, bool every) {
  RankParity options;
  options.tolerance = 1e-6;  // As without checkpoints: model_families_test.
  options.step = steps_of<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  expect_rank_parity<Model>(
      world,
      [&make, every, made = 0]() mutable {
        Model model = make();
        if (made++ > 0) {
          model->run_layers_with(ActivationCheckpointing(
              *model, units::every_nth_of_lists(every ? 1 : 2)));
        }
        return model;
      },
      token_loss<Model>, options);
}

TEST_P(Checkpoints, T08LayersOfDecodersByPolicy) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool every : {true, false}) {
      expect_layers_of<models::Gpt>(world, gpt, every);
      expect_layers_of<models::Llama>(world, llama, every);
    }
  }));
}

// Of one backward, with every layer a region or none.
template <typename Model>
Leaves slice_gradients(
    const World& world,
    Model model,
    const FullyShardOptions& options,
    bool regions) {
  if (regions) {
    model->run_layers_with(ActivationCheckpointing(*model));
  }
  auto fsdp = fully_shard(*model, world, options);
  Leaves all = {token_loss(model, 0, world.rank())};
  all.front().backward();
  for (const auto& slice : fsdp.parameters()) {
    all.push_back(slice.grad().clone());
  }
  return all;
}

template <typename Model>
void expect_no_bit_changed(
    const World& world, const std::function<Model()>& make) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    FullyShardOptions options;
    options.mixed_precision.param_dtype = dtype;
    const auto expected = slice_gradients(world, make(), options, false);
    const auto found = slice_gradients(world, make(), options, true);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      expect_close(found[i], expected[i], 0.0, "loss or gradient");
    }
  }
}

TEST_P(Checkpoints, T08DecodersKeepEveryBitInBothPrecisions) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_no_bit_changed<models::Gpt>(world, gpt);
    expect_no_bit_changed<models::Llama>(world, llama);
  }));
}

TEST_P(Checkpoints, T08AnUpdateBetweenForwardAndBackwardIsAnError) {
  if (GetParam() == 1) {
    return;  // Plain LibTorch: tests/autograd.
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Pairs model(Regions::kUnits, false);
    auto fsdp = fully_shard(*model, world, over_messages());
    const auto loss = pairs_loss(model, 0, world.rank());
    fsdp.publish();
    EXPECT_THAT(
        error_of([&] { loss.backward(); }),
        testing::HasSubstr("changed between forward and backward"));
    pairs_loss(model, 1, world.rank()).backward();
  }));
}

// A user's own checkpoints, whose backward runs another one within it. Layers 0
// and 1 lie in two of them: the second part of their gradients comes after their
// units were reduced.
TEST_P(Checkpoints, T08ReentrantSegmentsBringGradientsInParts) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      RankParity options;
      options.shard.strategy = strategy;
      expect_rank_parity<Chain>(
          world, [] { return Chain(3, 6); },
          [](Chain& model, int batch, int rank) {
            const auto segment = [&model](const torch::Tensor& x) {
              const auto y = model->layer(0).forward(x).clamp(-2, 2);
              return model->layer(1).forward(y).clamp(-2, 2);
            };
            auto x = integer_rows(batch, rank, 6).requires_grad_();
            x = reentrant_checkpoint(segment, x);
            x = model->layer(2).forward(x).clamp(-2, 2);
            x = reentrant_checkpoint(segment, x);
            return model->head(x).sum() * 12;
          },
          options);
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Checkpoints,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
