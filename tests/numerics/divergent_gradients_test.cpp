// SPDX-License-Identifier: Apache-2.0
//
// Gradients that exist on some ranks only, or nowhere; frozen parameters.
#include <sherd/optim/adamw.h>
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

namespace sherd::test {
namespace {

class DivergentGradients : public testing::TestWithParam<int> {};

// Two branches behind a stem, a layer nobody calls, containers in containers.
struct BranchesImpl : torch::nn::Module {
  torch::nn::Linear stem{nullptr}, left{nullptr}, right{nullptr};
  torch::nn::Linear unused{nullptr};
  torch::nn::ModuleList nested;
  BranchesImpl() {
    stem = register_module("stem", torch::nn::Linear(4, 5));
    left = register_module("left", torch::nn::Linear(5, 3));
    right = register_module("right", torch::nn::Linear(5, 3));
    unused = register_module("unused", torch::nn::Linear(3, 3));
    nested->push_back(torch::nn::Linear(3, 3));
    nested->push_back(torch::nn::Sequential(
        torch::nn::Linear(3, 3), torch::nn::ReLU(), torch::nn::Linear(3, 2)));
    register_module("nested", nested);
    fill_with_integers(*this);
  }
  struct Output {
    torch::Tensor left, right, nested;
  };
  Output forward(const torch::Tensor& x) {
    const auto y = torch::relu(stem(x));
    const auto l = left(y).clamp(-2, 2);
    const auto n = nested[0]->as<torch::nn::Linear>()->forward(l);
    return {l, right(y), nested[1]->as<torch::nn::Sequential>()->forward(n)};
  }
};
TORCH_MODULE(Branches);

RankParity every_child_a_unit() {
  RankParity options;
  options.steps = 4;
  options.shard.units = units::by_name("*");
  return options;
}

Branches branches() { return Branches(); }

TEST_P(DivergentGradients, T16ALossThatIgnoresOutputsLeavesThemUndefined) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_rank_parity<Branches>(
        world, branches,
        [](Branches& model, int batch, int rank) {
          return model->forward(integer_rows(batch, rank, 4)).left.sum();
        },
        every_child_a_unit());
  }));
}

TEST_P(DivergentGradients, T16EachBatchUsesOtherOutputs) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto options = every_child_a_unit();
    options.micro_batches = 2;
    expect_rank_parity<Branches>(
        world, branches,
        [](Branches& model, int batch, int rank) {
          const auto out = model->forward(integer_rows(batch, rank, 4));
          return batch % 3 == 0 ? out.left.sum()
              : batch % 3 == 1  ? out.right.sum()
                                : out.nested.sum() + out.left.sum();
        },
        options);
  }));
}

TEST_P(DivergentGradients, T16OneRankDoesNotDependOnSomeUnits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      auto options = every_child_a_unit();
      options.shard.strategy = strategy;
      expect_rank_parity<Branches>(
          world, branches,
          [](Branches& model, int batch, int rank) {
            const auto out = model->forward(integer_rows(batch, rank, 4));
            return (rank + batch) % 2 == 0 ? out.right.sum() : out.nested.sum();
          },
          options);
    }
  }));
}

TEST_P(DivergentGradients, T16NestedContainersAsUnitsOfTheirOwn) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    const auto report = expect_rank_parity<Branches>(
        world, branches,
        [](Branches& model, int batch, int rank) {
          const auto out = model->forward(integer_rows(batch, rank, 4));
          return out.nested.sum() + out.right.sum();
        },
        options);
    // The root, nested.0, and two layers of nested.1, which keeps nothing.
    EXPECT_EQ(report.units, 4);
  }));
}

TEST_P(DivergentGradients, T16OneRankDoesNotDependOnTheModelAtAll) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto independent = [&](int batch, int rank) {
      return rank == batch % world.size();
    };
    for (const std::int64_t budget : {0, 512}) {
      auto options = every_child_a_unit();
      options.micro_batches = 2;
      if (budget > 0) {
        options.shard.budget_bytes = budget;
      }
      expect_rank_parity<Branches>(
          world, branches,
          [&](Branches& model, int batch, int rank) {
            const auto out = model->forward(integer_rows(batch, rank, 4));
            const auto own = torch::ones({2}).requires_grad_();
            const auto loss = out.nested.sum() + out.right.sum();
            return independent(batch, rank) ? own.sum() : loss;
          },
          options);
    }
  }));
}

TEST_P(DivergentGradients, T16ALossOfNoRankDependsOnTheModel) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Branches model;
    auto fsdp = fully_shard(*model, world, every_child_a_unit().shard);
    (void)model->forward(integer_rows(0, world.rank(), 4));
    torch::ones({1}).requires_grad_().sum().backward();
    for (const auto& slice : fsdp.parameters()) {
      EXPECT_FALSE(slice.grad().defined());
    }
  }));
}

TEST_P(DivergentGradients, T16RanksUseOneParameterAnotherNumberOfTimes) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_rank_parity<Branches>(
        world, branches,
        [](Branches& model, int batch, int rank) {
          auto x = torch::relu(model->stem(integer_rows(batch, rank, 4)));
          auto loss = model->right(x).sum();
          for (int i = 0; i < 3; ++i) {
            const auto y = model->left(x).sum();
            loss = i <= rank ? loss + y : loss;
          }
          return loss;
        },
        every_child_a_unit());
  }));
}

void freeze(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) {
    parameter.requires_grad_(false);
  }
}

TEST_P(DivergentGradients, T15FrozenParametersStayAndHaveNoGradient) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      RankParity options;
      options.shard.units = units::by_name("*");
      options.shard.strategy = strategy;
      expect_rank_parity<IntegerMlp>(
          world,
          [] {
            IntegerMlp model;
            freeze(*model->first);                      // A whole unit,
            model->second->bias.requires_grad_(false);  // a part of one.
            return model;
          },
          integer_loss, options);
    }
  }));
}

TEST_P(DivergentGradients, T15AFrozenLayerInTheMiddlePassesGradientsOn) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.shard.units = units::by_name("*");
    const auto report = expect_rank_parity<IntegerMlp>(
        world,
        [] {
          IntegerMlp model;
          freeze(*model->second);
          return model;
        },
        integer_loss, options);
    if (world.size() > 1) {
      EXPECT_EQ(report.reduces, 2 * 3);  // Two trainable units, three steps.
    }
  }));
}

// Whole units and parts of them, frozen in some batches only.
torch::Tensor flipping_loss(IntegerMlp& model, int batch, int rank) {
  const auto train = [](torch::nn::Module& module, bool flag) {
    for (auto& parameter : module.parameters()) {
      parameter.requires_grad_(flag);
    }
  };
  train(*model->first, batch % 4 != 1);
  train(*model->third, batch % 4 != 3);
  model->second->bias.requires_grad_(batch % 2 == 0);
  return integer_loss(model, batch, rank);
}

TEST_P(DivergentGradients, T15WhatIsFrozenLaterHasNoGradientUntilItIsThawed) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      for (const int micro_batches : {1, 2}) {
        RankParity options;
        options.steps = 6;
        options.micro_batches = micro_batches;
        options.shard.units = units::by_name("*");
        options.shard.strategy = strategy;
        const auto report = expect_rank_parity<IntegerMlp>(
            world, [] { return IntegerMlp(); }, flipping_loss, options);
        if (world.size() > 1) {
          EXPECT_EQ(report.reduces, 3 * report.backwards);
        }
      }
    }
  }));
}

// Of each rank; then all ranks set the flag alike and train on.
void expect_refused_flags(
    const World& world,
    const std::function<void(IntegerMlp&)>& flip,
    const std::function<void(IntegerMlp&)>& mend,
    const std::string& sentence) {
  for (const auto strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    FullyShardOptions options;
    options.strategy = strategy;
    IntegerMlp model;
    model->first->bias.requires_grad_(false);
    auto fsdp = fully_shard(*model, world, options);
    for (int step = 0; step < 2; ++step) {
      integer_loss(model, step, world.rank()).backward();
      fsdp.publish();
      flip(model);
      // Without a plan at the end of the backward, otherwise before it.
      const auto error = error_of([&] {
        auto loss = integer_loss(model, step, world.rank());
        EXPECT_EQ(fsdp.report().budget_bytes, 0);
        loss.backward();
      });
      EXPECT_NE(error.find(sentence), std::string::npos) << error;
      mend(model);
      for (const auto& item : fsdp.named_parameters().items) {
        at::Tensor(item.slice).mutable_grad().reset();
      }
    }
    integer_loss(model, 2, world.rank()).backward();
    for (const auto& item : fsdp.named_parameters().items) {
      EXPECT_EQ(item.slice.grad().defined(), item.name != "first.bias");
    }
  }
}

TEST_P(DivergentGradients, T15RanksThatFreezeDifferentlyAreToldSo) {
  const int last = GetParam() - 1;
  if (last == 0) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    expect_refused_flags(
        world,
        [&](IntegerMlp& model) {
          model->second->bias.requires_grad_(world.rank() != last);
        },
        [](IntegerMlp& model) { model->second->bias.requires_grad_(true); },
        "ranks disagree on requires_grad of parameter second.bias: rank 0 has "
        "true, rank " +
            std::to_string(last) + " has false");
  }));
}

TEST_P(DivergentGradients, T15RanksThatThawDifferentlyAreToldSo) {
  const int last = GetParam() - 1;
  if (last == 0) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    expect_refused_flags(
        world,
        [&](IntegerMlp& model) {
          model->first->bias.requires_grad_(world.rank() == last);
        },
        [](IntegerMlp& model) { model->first->bias.requires_grad_(false); },
        "ranks disagree on requires_grad of parameter first.bias: rank 0 has "
        "false, rank " +
            std::to_string(last) + " has true");
  }));
}

IntegerMlp partly_frozen() {
  IntegerMlp model;
  freeze(*model->second);                    // A whole unit,
  model->first->bias.requires_grad_(false);  // a part of one.
  return model;
}

// Thawed, also between micro-batches, and a part frozen again.
torch::Tensor thawing_loss(IntegerMlp& model, int batch, int rank) {
  model->first->bias.requires_grad_(batch >= 3);
  model->second->weight.requires_grad_(batch == 2 || batch == 3);
  return integer_loss(model, batch, rank);
}

TEST_P(DivergentGradients, T15WhatStartedFrozenTrainsOnceItIsThawed) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.shard.units = units::by_name("*");
    const auto check = [&] {
      for (const int micro_batches : {1, 2}) {
        options.micro_batches = micro_batches;
        options.steps = 6 / micro_batches;
        expect_rank_parity<IntegerMlp>(
            world, partly_frozen, thawing_loss, options);
      }
    };
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      options.shard.strategy = strategy;
      check();
      options.shard.exchange = ExchangeKind::kCollective;
      check();
      options.shard.exchange = ExchangeKind::kAuto;
    }
    if (world.size() == 4) {
      options.shard.strategy = Strategy::kFullShard;
      options.replicas = 2;
      check();
    }
  }));
}

// No forward lies between the backward that thaws a unit and the next one.
TEST_P(DivergentGradients, T15WhatWasThawedHasTheGradientsOfTwoBackwards) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto thawed_loss = [](IntegerMlp& model, int batch, int rank) {
      model->second->weight.requires_grad_(true);
      return integer_loss(model, batch, rank);
    };
    for (const auto exchange :
         {ExchangeKind::kAuto, ExchangeKind::kCollective}) {
      for (const auto strategy :
           {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
        FullyShardOptions options;
        options.units = units::by_name("*");
        options.strategy = strategy;
        options.exchange = exchange;
        auto reference = partly_frozen();
        auto model = partly_frozen();
        const auto leaves = unique_parameters(*reference);
        const Slicing slicing(*reference, world, options);
        auto fsdp = fully_shard(*model, world, options);
        const auto loss = thawed_loss(model, 0, world.rank());
        for (const bool retain_graph : {true, false}) {
          reference_backward<IntegerMlp>(
              reference, leaves, thawed_loss, 0, world, options);
          loss.backward({}, retain_graph);
          expect_gradients(slicing, leaves, fsdp, 0.0);
        }
      }
    }
  }));
}

TEST_P(DivergentGradients, T15ShardBytesHaveTheGradientsOfWhatWasThawed) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto exchange :
         {ExchangeKind::kAuto, ExchangeKind::kCollective}) {
      FullyShardOptions options;
      options.exchange = exchange;
      options.units = units::by_name("*");
      const auto bytes_of = [&](IntegerMlp model) {
        auto fsdp = fully_shard(*model, world, options);
        const auto before = fsdp.report().shard_bytes;
        model->second->weight.requires_grad_(true);
        integer_loss(model, 0, world.rank()).backward();
        fsdp.publish();
        return std::pair(before, fsdp.report().shard_bytes);
      };
      IntegerMlp frozen;
      frozen->second->weight.requires_grad_(false);
      const auto [at_first, once_thawed] = bytes_of(frozen);
      const auto [trained, trained_on] = bytes_of(IntegerMlp());
      EXPECT_EQ(trained_on, trained);
      // The cuts of what is a unit of its own may leave a rank nothing of it.
      const auto all =
          world.all_gather({static_cast<double>(once_thawed - at_first)});
      double more = 0;
      for (const auto& rank : all) {
        EXPECT_GE(rank[0], 0);
        more += rank[0];
      }
      EXPECT_GE(more, 15 * 5 * sizeof(float));
      EXPECT_LT(more, trained * world.size());
    }
  }));
}

// A gradient of some ranks alone thaws the unit on all.
TEST_P(DivergentGradients, T15WhatStartedFrozenMayBeUsedBySomeRanksAlone) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.steps = 4;
    options.shard.units = units::by_name("*");
    for (const auto exchange :
         {ExchangeKind::kAuto, ExchangeKind::kCollective}) {
      options.shard.exchange = exchange;
      expect_rank_parity<Branches>(
          world,
          [] {
            Branches model;
            freeze(*model->left);
            freeze(*model->right);
            return model;
          },
          [](Branches& model, int batch, int rank) {
            for (auto& parameter : model->left->parameters()) {
              parameter.requires_grad_(batch > 0);
            }
            const auto out = model->forward(integer_rows(batch, rank, 4));
            return rank == 0 ? out.left.sum() : out.right.sum();
          },
          options);
    }
  }));
}

TEST_P(DivergentGradients, T15AnOptimizerHasStateOfWhatWasThawed) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto model = partly_frozen();
    auto fsdp = fully_shard(*model, world, {.units = units::by_name("*")});
    AdamW adamw(fsdp.named_parameters());
    const auto has_state = [&](const std::string& parameter) {
      const auto slices = adamw.tensors({});
      const bool here = std::any_of(
          slices.begin(), slices.end(), [&](const OptimizerTensor& tensor) {
            return tensor.parameter == parameter;
          });
      // A small parameter lies on some ranks only.
      const auto all = world.all_gather({here ? 1.0 : 0.0});
      return std::ranges::find(all, std::vector<double>{1.0}) != all.end();
    };
    for (const bool thawed : {false, true}) {
      model->second->weight.requires_grad_(thawed);
      integer_loss(model, 0, world.rank()).backward();
      adamw.step();
      adamw.zero_grad();
      EXPECT_EQ(has_state("second.weight"), thawed);
      EXPECT_TRUE(has_state("third.weight"));
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    DivergentGradients,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
