// SPDX-License-Identifier: Apache-2.0
//
// What becomes a unit, and what cannot be sharded.
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear inner{nullptr}, outer{nullptr};
  BlockImpl() {
    inner = register_module("inner", torch::nn::Linear(4, 4));  // 20 elements.
    outer = register_module("outer", torch::nn::Linear(4, 2));  // 10 elements.
  }
};
TORCH_MODULE(Block);

// 24 + 2 x 30 + 10 elements.
struct TreeImpl : torch::nn::Module {
  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList blocks;
  torch::nn::Sequential head;
  TreeImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(6, 4));
    register_module("blocks", blocks);
    blocks->push_back(Block());
    blocks->push_back(Block());
    head = torch::nn::Sequential(torch::nn::ReLU(), torch::nn::Linear(4, 2));
    register_module("head", head);
  }
};
TORCH_MODULE(Tree);

// Runs in a child: the parent must not touch LibTorch's threads.
void expect_units(
    const units::Policy& policy, const std::vector<std::string>& names) {
  expect_all_ok(run_processes(1, [&](int, Rank&) {
    std::vector<std::string> found;
    const auto model = fsdp::build_units(*Tree(), policy, 2, nullptr);
    for (const auto& unit : model.units) {
      found.push_back(unit.name);
    }
    // In the order of their first parameters, which is of no interest here.
    EXPECT_THAT(found, testing::UnorderedElementsAreArray(names));
  }));
}

TEST(Units, T35ChildrenOfListsIsTheDefault) {
  // head.0, a ReLU, has no parameters and is no unit.
  expect_units(
      units::children_of_lists(), {"(root)", "blocks.0", "blocks.1", "head.1"});
  expect_units(
      FullyShardOptions().units, {"(root)", "blocks.0", "blocks.1", "head.1"});
}

TEST(Units, T35OfTypeTakesEachModuleOfTheClass) {
  expect_units(units::of_type<BlockImpl>(), {"(root)", "blocks.0", "blocks.1"});
}

TEST(Units, T35TheInnermostMatchOwnsAParameter) {
  // A block keeps only what its inner unit does not take.
  expect_units(
      [](const units::Candidate& candidate) {
        return units::of_type<BlockImpl>()(candidate) ||
            units::by_name("blocks.0.inner")(candidate);
      },
      {"(root)", "blocks.0", "blocks.0.inner", "blocks.1"});
  expect_all_ok(run_processes(1, [&](int, Rank&) {
    const auto model = fsdp::build_units(
        *Tree(),
        [](const units::Candidate& candidate) {
          return candidate.name == "blocks.0" ||
              candidate.name == "blocks.0.inner";
        },
        2, nullptr);
    const auto unit_of = [&](const char* name) {
      return model
          .units[static_cast<std::size_t>(
              fsdp::find_parameter(model, name).unit)]
          .name;
    };
    EXPECT_EQ(unit_of("blocks.0.inner.weight"), "blocks.0.inner");
    EXPECT_EQ(unit_of("blocks.0.outer.weight"), "blocks.0");
    EXPECT_EQ(unit_of("blocks.1.inner.weight"), "(root)");
  }));
}

TEST(Units, T35BySizeCountsWhatNoInnerUnitTook) {
  // inner (20) reaches 20; outer (10) and the rest of its block (10) do not.
  expect_units(
      units::by_size(20),
      {"(root)", "embedding", "blocks.0.inner", "blocks.1.inner"});
  expect_units(units::by_size(30), {"(root)", "blocks.0", "blocks.1"});
  expect_units(units::by_size(1000), {"(root)"});
}

TEST(Units, T35ByNameMatchesOneLevelPerStar) {
  expect_units(units::by_name("blocks.*"), {"(root)", "blocks.0", "blocks.1"});
  expect_units(
      units::by_name("blocks.?.outer"),
      {"(root)", "blocks.0.outer", "blocks.1.outer"});
  expect_units(units::by_name("*"), {"embedding", "blocks", "head"});
}

TEST(Units, T35NoneAndOwnPredicates) {
  expect_units(units::none(), {"(root)"});
  expect_units(
      [](const units::Candidate& candidate) {
        return candidate.parent != nullptr && candidate.numel == 24;
      },
      {"(root)", "embedding"});
}

TEST(Units, T35EveryPolicyTrainsTheSame) {
  expect_all_ok(run_ranks(2, [](World world) {
    const std::vector<units::Policy> policies = {
        units::none(),
        units::children_of_lists(),
        units::by_size(10),
        units::by_name("layers.*"),
        units::of_type<torch::nn::LinearImpl>(),
        [](const units::Candidate& candidate) {
          return candidate.name == "layers" || candidate.name == "layers.1";
        }};
    std::vector<int> counts;
    for (const auto& policy : policies) {
      RankParity options;
      options.shard.units = policy;
      counts.push_back(
          expect_rank_parity<Chain>(
              world, [] { return Chain(3, 4); },
              [](Chain& model, int batch, int rank) {
                return model->forward(integer_rows(batch, rank, 4)).sum();
              },
              options)
              .units);
    }
    EXPECT_THAT(counts, ElementsAre(1, 4, 4, 4, 4, 3));
  }));
}

// ---- refused ----

// On every rank the same sentence, and afterwards the module can be sharded.
void expect_refused(
    const std::function<void(Chain&, FullyShardOptions&)>& spoil,
    const std::function<void(Chain&)>& mend,
    const std::string& sentence) {
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(run_ranks(ranks, [&](World world) {
      Chain model(2, 3);
      FullyShardOptions options;
      spoil(model, options);
      EXPECT_THAT(
          error_of([&] { (void)fully_shard(*model, world, options); }),
          HasSubstr(sentence));
      mend(model);
      auto fsdp = fully_shard(*model, world);
      model->forward(integer_rows(0, world.rank(), 3)).sum().backward();
    }));
  }
}

TEST(Refused, T36ATrainableComplexParameter) {
  expect_refused(
      [](Chain& model, FullyShardOptions&) {
        model->register_parameter(
            "phase", torch::ones({2}, torch::kComplexFloat));
      },
      [](Chain& model) {
        model->named_parameters()["phase"].set_requires_grad(false);
      },
      "parameter phase is trainable and of type ComplexFloat");
}

TEST(Refused, T36AParameterLeftOnTheMetaDevice) {
  expect_refused(
      [](Chain& model, FullyShardOptions&) {
        model->register_parameter(
            "later", torch::empty({2}, torch::TensorOptions(torch::kMeta)));
      },
      [](Chain& model) { model = Chain(2, 3); },
      "parameter later is on the meta device");
}

TEST(Refused, T36AnEmptyPolicy) {
  expect_refused(
      [](Chain&, FullyShardOptions& options) { options.units = nullptr; },
      [](Chain&) {}, "options.units is empty");
}

TEST(Refused, T36NoShardWithABudget) {
  expect_refused(
      [](Chain&, FullyShardOptions& options) {
        options.strategy = Strategy::kNoShard;
        options.budget_bytes = 1 << 20;
      },
      [](Chain&) {}, "no_shard takes no byte budget");
}

TEST(Refused, T36AModuleWithoutParameters) {
  for (const int ranks : {1, 2}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      torch::nn::Sequential empty{torch::nn::ReLU()};
      EXPECT_THAT(
          error_of([&] { (void)fully_shard(*empty, world); }),
          HasSubstr("has no parameters"));
    }));
  }
}

TEST(Refused, T36AModuleShardedTwiceOrInParts) {
  for (const int ranks : {1, 2, 4}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      Chain model(2, 6);
      auto fsdp = fully_shard(*model, world);
      EXPECT_THAT(
          error_of([&] { (void)fully_shard(*model, world); }),
          HasSubstr("is sharded already"));
      EXPECT_THAT(
          error_of([&] { (void)fully_shard(*model->layers, world); }),
          HasSubstr("parameter 0.weight is sharded already"));
      // The first sharding goes on.
      model->forward(integer_rows(0, world.rank(), 6)).sum().backward();
      EXPECT_TRUE(fsdp.parameters().at(0).grad().defined());
    }));
  }
}

TEST(Refused, T36ABudgetBelowItsFloorNamesTheFloor) {
  expect_all_ok(run_ranks(2, [](World world) {
    Chain model(2, 3);
    auto options = over_messages();
    options.budget_bytes = 64;
    EXPECT_THAT(
        error_of([&] { (void)fully_shard(*model, world, options); }),
        HasSubstr("is below its floor of"));
    options.budget_bytes = std::nullopt;
    auto fsdp = fully_shard(*model, world, options);
    model->forward(integer_rows(0, world.rank(), 3)).sum().backward();
  }));
}

TEST(Refused, T36AMeshWhoseProductIsNotTheWorld) {
  expect_all_ok(run_ranks(4, [](World world) {
    Chain model(2, 3);
    for (const MeshOptions wrong :
         {MeshOptions{.replicate = 3}, MeshOptions{.replicate = 2, .shard = 3},
          MeshOptions{.replicate = 1, .shard = 2}}) {
      EXPECT_THAT(
          error_of([&] { (void)fully_shard(*model, Mesh(world, wrong)); }),
          HasSubstr("4"));
    }
    auto fsdp = fully_shard(*model, Mesh(world, {.replicate = 1, .shard = 4}));
    model->forward(integer_rows(0, world.rank(), 3)).sum().backward();
  }));
}

}  // namespace
}  // namespace sherd::test
