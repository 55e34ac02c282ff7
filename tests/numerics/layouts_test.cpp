// SPDX-License-Identifier: Apache-2.0
//
// Whatever the strides of parameters and buffers: the numbers of one process.
#include "support/odd_layouts.h"
#include "support/rank_parity.h"
#include "support/ranks.h"

#include <optional>

namespace sherd::test {
namespace {

constexpr Strategy kAll[] = {
    Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard};

class Layouts : public testing::TestWithParam<int> {};

FullyShardOptions with(Strategy strategy) {
  FullyShardOptions options;
  options.strategy = strategy;
  return options;
}

TEST_P(Layouts, EveryStrategyIsEqualInBits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      RankParity options;
      options.micro_batches = 2;
      options.shard = with(strategy);
      expect_rank_parity<OddLayouts>(
          world, [] { return OddLayouts(); }, odd_loss, options);
    }
    OddLayouts model;
    odd_loss(model, 0, world.rank()).backward();
    for (const auto& item : model->named_parameters()) {
      EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0.0)
          << item.key() << " shows nothing";
    }
  }));
}

TEST_P(Layouts, OptimizersOfLibTorchTrainAsInOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto make = [] { return OddLayouts(Gaps::kWith, torch::kDouble); };
    for (const auto strategy : kAll) {
      RankParity options;
      options.steps = 4;
      options.tolerance = 1e-9;
      options.shard = with(strategy);
      for (const auto& step :
           {steps_of<torch::optim::AdamW>(
                torch::optim::AdamWOptions(1e-2).weight_decay(0.1)),
            steps_of<torch::optim::RMSprop>(
                torch::optim::RMSpropOptions(1e-2).momentum(0.9))}) {
        options.step = step;
        expect_rank_parity<OddLayouts>(world, make, odd_loss, options);
      }
    }
  }));
}

// A parameter that was made as a view, and used through a view of its own, which
// each forward makes before any operator reads bytes.
struct ViewedImpl : torch::nn::Module {
  torch::Tensor weight;
  explicit ViewedImpl(bool made_as_a_view) {
    const auto values = small_integers({4, 6}, 1);
    weight = register_parameter(
        "weight", made_as_a_view ? values.t() : values.t().contiguous());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto view = weight.t();
    return torch::nn::functional::linear(x, view);
  }
};
TORCH_MODULE(Viewed);

// Without an optimizer of sherd's each forward after a backward publishes.
TEST_P(Layouts, AParameterMadeAsAViewHasEveryGradient) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      for (const bool made_as_a_view : {false, true}) {
        RankParity options;
        options.micro_batches = 3;
        options.shard = with(strategy);
        expect_rank_parity<Viewed>(
            world, [&] { return Viewed(made_as_a_view); },
            [](Viewed& model, int batch, int rank) {
              return model->forward(integer_rows(batch, rank, 6))
                  .square()
                  .sum();
            },
            options);
      }
    }
  }));
}

// Every way of reading and writing whole parameters, in both precisions.
TEST_P(Layouts, SummonReadsAndWritesInTheOrderOfIndices) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const torch::NoGradGuard no_grad;
    for (const auto strategy : kAll) {
      for (const bool mixed : {false, true}) {
        auto options = with(strategy);
        if (mixed) {  // Small integers are numbers of it.
          options.mixed_precision.param_dtype = torch::kBFloat16;
        }
        OddLayouts reference, model;
        const auto leaves = unique_parameters(*reference);
        auto fsdp = fully_shard(*model, world, options);
        const auto expect_all = [&](SummonScope& scope) {
          for (const auto& leaf : leaves) {
            expect_close(
                scope.tensor(leaf.name), leaf.tensor.detach(), 0.0, leaf.name);
            expect_close(
                model->named_parameters()[leaf.name].detach().to(torch::kFloat),
                leaf.tensor.detach(), 0.0, leaf.name + " of the module");
          }
        };
        const auto change = [&](const NamedLeaf& leaf, torch::Tensor to) {
          to.add_(small_integers(leaf.tensor.sizes().vec(), 12));
        };
        {
          auto scope = fsdp.summon_full_parameters();
          expect_all(scope);
          for (std::size_t i = 0; i < leaves.size(); ++i) {
            const auto& name = leaves[i].name;
            change(leaves[i], leaves[i].tensor);
            change(
                leaves[i],
                i % 2 == 0 ? scope.tensor(name)
                           : model->named_parameters()[name]);
          }
        }
        auto scope = fsdp.summon_full_parameters({.read_only = true});
        expect_all(scope);
      }
    }
  }));
}

// Elements are dealt in the order of indices, so that ranks may have them in
// memory as they like.
TEST_P(Layouts, RanksMayHaveOtherStrides) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      RankParity options;
      options.shard = with(strategy);
      expect_rank_parity<OddLayouts>(
          world,
          [&] {
            return world.rank() % 2 == 0 ? OddLayouts()
                                         : contiguous(OddLayouts());
          },
          odd_loss, options);
    }
  }));
}

TEST_P(Layouts, RanksWithOtherStridesTakeTheValuesOfRankZero) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool first : {false, true}) {
      OddLayouts reference, model;
      if (first == (world.rank() == 0)) {
        model = contiguous(model);
      }
      {
        const torch::NoGradGuard no_grad;
        for (const auto& tensors : {model->parameters(), model->buffers()}) {
          for (auto tensor : tensors) {
            tensor.add_(world.rank());
          }
        }
      }
      auto fsdp = fully_shard(*model, world, {.sync_module_states = true});
      expect_parameters(unique_parameters(*reference), *model, fsdp, 0.0);
      for (const auto& item : reference->named_buffers()) {
        expect_close(
            model->named_buffers()[item.key()], item.value(), 0.0, item.key());
      }
    }
  }));
}

// A parameter and a buffer, of which all rows may be one row in memory.
struct RowsImpl : torch::nn::Module {
  torch::Tensor weight, mask;
  RowsImpl(bool expand_weight, bool expand_mask) {
    const auto rows = [](bool expand, int salt) {
      const auto all = small_integers({1, 6}, salt).expand({4, 6});
      return expand ? all : all.contiguous();
    };
    weight = register_parameter("weight", rows(expand_weight, 1));
    mask = register_buffer("mask", rows(expand_mask, 2));
  }
};
TORCH_MODULE(Rows);

TEST_P(Layouts, OneElementInSeveralPlacesTakesNoValuesOfRankZero) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const int last = world.size() - 1;
    const auto expect_sharded = [&](Rows model, bool sync) {
      const auto error = error_of([&] {
        fully_shard(*model, world, {.sync_module_states = sync}).close();
      });
      EXPECT_EQ(error, "no error");
    };
    for (const bool weight : {false, true}) {
      Rows model(weight, !weight);
      if (last > 0) {
        const auto error = error_of([&] {
          (void)fully_shard(*model, world, {.sync_module_states = true});
        });
        EXPECT_NE(
            error.find(
                weight ? "[fsdp] parameter weight has elements that share"
                       : "[fsdp] buffer mask has elements that share"),
            std::string::npos)
            << error;
        EXPECT_NE(
            error.find("expected a tensor that holds each element once"),
            std::string::npos)
            << error;
        // Nothing has changed.
        EXPECT_EQ(model->weight.strides()[0], weight ? 0 : 6);
        EXPECT_EQ(model->mask.strides()[0], weight ? 6 : 0);
      }
      expect_sharded(model, /*sync=*/last == 0);
    }
    // Rank 0 gives values only.
    const bool first = world.rank() == 0;
    expect_sharded(Rows(first, first), /*sync=*/true);
  }));
}

// What no gradient is for yet adds up beside.
TEST_P(Layouts, MicroBatchesUnderNoSyncAddUp) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      OddLayouts reference, model;
      const auto leaves = unique_parameters(*reference);
      const auto options = with(strategy);
      const Slicing slicing(*reference, world, options);
      auto fsdp = fully_shard(*model, world, options);
      for (int batch = 0; batch < 3; ++batch) {
        std::optional<NoSyncScope> local;
        if (batch < 2) {
          local.emplace(fsdp.no_sync());
        }
        reference_backward<OddLayouts>(
            reference, leaves, odd_loss, batch, world, options);
        odd_loss(model, batch, world.rank()).backward();
      }
      expect_gradients(slicing, leaves, fsdp, 1e-6);
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Layouts,
    testing::Values(1, 2, 3),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
