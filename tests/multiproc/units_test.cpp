// SPDX-License-Identifier: Apache-2.0
//
// What becomes a unit, and what cannot be sharded.
#include "support/budgets.h"
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <array>
#include <filesystem>
#include <gmock/gmock.h>
#include <sherd/autograd/touch.h>
#include <sherd/optim/sgd.h>

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
    const auto model = fsdp::build_units(*Tree(), 2, {.units = policy});
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
        *Tree(), 2, {.units = [](const units::Candidate& candidate) {
          return candidate.name == "blocks.0" ||
              candidate.name == "blocks.0.inner";
        }});
    const auto unit_of = [&](const char* name) {
      return model.unit(fsdp::find_parameter(model, name).unit).name;
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
  expect_units(units::optional(units::by_size(1000)), {"(root)"});
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
        units::any_of(
            {units::together({"layers.0", "head"}),
             units::children_of_lists()}),
        units::with_options(units::children_of_lists(), {.keep_whole = true}),
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
    EXPECT_THAT(counts, ElementsAre(1, 4, 4, 4, 4, 3, 4, 3));
  }));
}

bool is_whole(const torch::Tensor& parameter) {
  return error_of([&] { (void)parameter.const_data_ptr(); }) == "no error";
}

TEST(Units, AKeptUnitStaysWholeUntilTheNextUpdate) {
  for (const int ranks : {2, 3}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      Chain model(4, 5);
      auto options = over_messages();
      options.units = units::any_of(
          {units::with_options(
               units::by_name("layers.1"), {.keep_whole = true}),
           units::children_of_lists()});
      options.budget_bytes = budgets_of(*model, options, world.size()).floor;
      auto fsdp = fully_shard(*model, world, options);
      const auto& kept = model->layer(1).weight;
      for (int step = 0; step < 3; ++step) {
        EXPECT_FALSE(is_whole(kept));
        auto loss = model->forward(integer_rows(step, world.rank(), 5)).sum();
        EXPECT_TRUE(is_whole(kept));
        EXPECT_FALSE(is_whole(model->layer(0).weight));
        loss.backward();
        EXPECT_TRUE(is_whole(kept));
        fsdp.publish();
      }
      const auto report = fsdp.report();
      EXPECT_LE(report.unsharded_bytes_peak, *options.budget_bytes);
      EXPECT_GT(report.plan.steps_planned, 0);
      EXPECT_TRUE(fsdp.units().at(1).keep_whole);
      EXPECT_EQ(fsdp.units().at(1).name, "layers.1");
    }));
  }
}

TEST(Units, AKeptUnitInUseIsNotReshardedByHand) {
  expect_all_ok(run_ranks(2, [](World world) {
    Chain model(4, 5);
    auto options = over_messages();
    options.units = units::any_of(
        {units::with_options(units::by_name("layers.1"), {.keep_whole = true}),
         units::children_of_lists()});
    auto fsdp = fully_shard(*model, world, options);
    const auto& kept = model->layer(1).weight;
    {
      const auto in_use = touch(kept);
      fsdp.reshard("layers.1");
      EXPECT_TRUE(is_whole(kept));
    }
    fsdp.reshard("layers.1");
    EXPECT_FALSE(is_whole(kept));
  }));
}

// Gradients of what is ignored are those of this rank's own pass.
TEST(Units, WhatIsIgnoredTrainsAsWithoutSherd) {
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      for (const auto kind :
           {ExchangeKind::kCollective, ExchangeKind::kSharedMemory}) {
        Chain plain(3, 4);
        Chain model(3, 4);
        auto fsdp = fully_shard(
            *model, world,
            {.exchange = kind, .ignored = {"head", "layers.1.bias"}});
        const auto x = integer_rows(0, world.rank(), 4);
        plain->forward(x).sum().backward();
        model->forward(x).sum().backward();
        EXPECT_TRUE(torch::equal(
            model->head->weight.grad(), plain->head->weight.grad()));
        EXPECT_TRUE(torch::equal(
            model->layer(1).bias.grad(), plain->layer(1).bias.grad()));
        for (const auto& item : fsdp.named_parameters().items) {
          EXPECT_FALSE(item.name.starts_with("head")) << item.name;
          EXPECT_NE(item.name, "layers.1.bias");
          EXPECT_TRUE(item.slice.grad().defined()) << item.name;
        }
      }
    }));
  }
}

// ---- gradients ----

// Small integers: sums are exact.
TEST(GradientDivideFactor, T22ReplacesTheNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      Chain plain(2, 3);
      for (int rank = 0; rank < world.size(); ++rank) {
        plain->forward(integer_rows(0, rank, 3)).sum().backward();
      }
      const auto sums = plain->named_parameters();
      for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
        for (const auto kind :
             {ExchangeKind::kCollective, ExchangeKind::kSharedMemory}) {
          Chain model(2, 3);
          FullyShardOptions options;
          options.strategy = strategy;
          options.exchange = kind;
          options.gradient_divide_factor = 0.5;
          const Slicing slicing(*model, world, options);
          auto fsdp = fully_shard(*model, world, options);
          model->forward(integer_rows(0, world.rank(), 3)).sum().backward();
          for (const auto& item : fsdp.named_parameters().items) {
            expect_close(
                item.slice.grad(),
                slicing.of(item.name, sums[item.name].grad() * 2), 0.0,
                item.name);
          }
        }
      }
    }));
  }
}

// ---- a part of the ranks ----

TEST(Subset, B2TwoModelsTrainOnDisjointParts) {
  expect_all_ok(run_ranks(4, [](World world) {
    const int first = world.rank() / 2 * 2;
    World half = world.subset({first, first + 1});
    const std::int64_t width = first == 0 ? 4 : 5;  // Different models.
    for (const auto kind :
         {ExchangeKind::kCollective, ExchangeKind::kSharedMemory,
          ExchangeKind::kHierarchical}) {
      RankParity options;
      options.shard.exchange = kind;
      options.replicas = kind == ExchangeKind::kCollective ? 2 : 1;
      expect_rank_parity<Chain>(
          half, [&] { return Chain(2, width); },
          [&](Chain& model, int batch, int rank) {
            return model->forward(integer_rows(batch, rank, width)).sum();
          },
          options);
    }
    // All four ranks meanwhile share a third one.
    expect_rank_parity<Chain>(
        world, [] { return Chain(2, 3); },
        [](Chain& model, int batch, int rank) {
          return model->forward(integer_rows(batch, rank, 3)).sum() * 4;
        });
    half.close();
  }));
}

struct ExpertNetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, expert{nullptr}, last{nullptr};
  explicit ExpertNetImpl(int which) {
    first = register_module("first", torch::nn::Linear(4, 4));
    expert = register_module("expert", torch::nn::Linear(4, 4));
    last = register_module("last", torch::nn::Linear(4, 2));
    fill_with_integers(*this);
    const torch::NoGradGuard no_grad;
    expert->weight.add_(which);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(expert(first(x).clamp(-2, 2)).clamp(-2, 2));
  }
};
TORCH_MODULE(ExpertNet);

// One process: experts have the mean over their two ranks, everything else that over all four.
void train_experts(std::array<ExpertNet, 2>& nets, int step) {
  for (int rank = 0; rank < 4; ++rank) {
    auto& net = nets[static_cast<std::size_t>(rank / 2)];
    net->forward(integer_rows(step, rank, 4)).sum().backward();
  }
  const torch::NoGradGuard no_grad;
  for (const auto& item : nets[0]->named_parameters()) {
    auto one = item.value();
    auto other = nets[1]->named_parameters()[item.key()];
    const bool of_expert = item.key().starts_with("expert");
    const auto mean = (one.grad() + other.grad()) / 4;
    one.sub_(of_expert ? one.grad() / 2 : mean);
    other.sub_(of_expert ? other.grad() / 2 : mean);
    one.mutable_grad().reset();
    other.mutable_grad().reset();
  }
}

// Halves of the ranks hold other experts, each sharded over its half.
TEST(Subset, B4SomeParametersHaveAMeshOfTheirOwn) {
  expect_all_ok(run_ranks(4, [](World world) {
    const int half = world.rank() / 2;
    World group = world.subset({2 * half, 2 * half + 1});
    for (const auto kind :
         {ExchangeKind::kCollective, ExchangeKind::kSharedMemory}) {
      ExpertNet model(half);
      auto experts = fully_shard(*model->expert, group, {.exchange = kind});
      auto others =
          fully_shard(*model, world, {.exchange = kind, .ignored = {"expert"}});
      Sgd of_experts(experts.named_parameters(), {.learning_rate = 1.0});
      Sgd of_others(others.named_parameters(), {.learning_rate = 1.0});
      std::array<ExpertNet, 2> plain{ExpertNet(0), ExpertNet(1)};
      for (int step = 0; step < 3; ++step) {
        model->forward(integer_rows(step, world.rank(), 4)).sum().backward();
        for (auto* optimizer : {&of_experts, &of_others}) {
          optimizer->step();
          optimizer->zero_grad();
        }
        train_experts(plain, step);
      }
      const auto expert_scope =
          experts.summon_full_parameters({.read_only = true});
      const auto scope = others.summon_full_parameters({.read_only = true});
      for (const auto& item :
           plain[static_cast<std::size_t>(half)]->named_parameters()) {
        const auto found = item.key().starts_with("expert.")
            ? expert_scope.tensor(item.key().substr(7))
            : scope.tensor(item.key());
        EXPECT_TRUE(torch::equal(found, item.value())) << item.key();
      }
    }
    group.close();
  }));
}

std::size_t open_sockets() {
  std::size_t count = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto to = std::filesystem::read_symlink(entry.path(), gone);
    count += to.string().starts_with("socket:") ? 1 : 0;
  }
  return count;
}

// Two models, as chunks of a pipeline, of which one has two forwards before its backward.
TEST(SharedConnectionsOf, B27TwoModelsTrainAsEachByItself) {
  RankOptions sharing;
  sharing.world.share_connections = true;
  expect_all_ok(run_ranks(
      3,
      [](World world) {
        FullyShardOptions options;
        options.exchange = ExchangeKind::kCollective;
        Chain first(3, 6), second(2, 6), plain_first(3, 6), plain_second(2, 6);
        auto sharded_first = fully_shard(*first, world, options);
        world.barrier();
        const auto sockets = open_sockets();
        auto sharded_second = fully_shard(*second, world, options);
        EXPECT_EQ(open_sockets(), sockets);
        const auto pass = [&](Chain& of_first, Chain& of_second, int rank) {
          const auto x = integer_rows(0, rank, 6);
          const auto between =
              of_second->forward(of_first->forward(x).clamp(-2, 2) * x);
          const auto again = of_first->forward(integer_rows(1, rank, 6));
          between.sum().backward();
          again.sum().backward();
        };
        pass(first, second, world.rank());
        for (int rank = 0; rank < world.size(); ++rank) {
          pass(plain_first, plain_second, rank);
        }
        const auto expect_mean = [&](Chain& plain, const auto& fsdp) {
          const auto leaves = unique_parameters(*plain);
          for (const auto& leaf : leaves) {
            leaf.tensor.mutable_grad().div_(world.size());
          }
          expect_gradients(
              Slicing(*plain, Mesh(world), options), leaves, fsdp, 1e-6);
        };
        expect_mean(plain_first, sharded_first);
        expect_mean(plain_second, sharded_second);
      },
      sharing));
}

TEST(Subset, B2AnAxisOfAMeshIsAWorld) {
  expect_all_ok(run_ranks(3, [](World world) {
    if (world.rank() == 1) {
      EXPECT_THAT(
          error_of([&] { (void)world.subset({0, 2}); }),
          HasSubstr("expected rank 1 to be one of the ranks"));
      return;
    }
    const Mesh mesh(world.subset({0, 2}));
    EXPECT_EQ(mesh.shard_size(), 2);
    EXPECT_THAT(mesh.shard_ranks(), ElementsAre(0, 1));
    Chain model(2, 3);
    auto fsdp = fully_shard(*model, mesh);
    model->forward(integer_rows(0, world.rank(), 3)).sum().backward();
    EXPECT_TRUE(fsdp.parameters().at(0).grad().defined());
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

TEST(Refused, T35APolicyThatTakesNoModule) {
  expect_refused(
      [](Chain&, FullyShardOptions& options) {
        options.units = units::of_type<BlockImpl>();
      },
      [](Chain&) {}, "takes none of the module's 4 modules (layers.0, ");
}

TEST(Refused, T35AnIgnoredNameThatIsNotThere) {
  expect_refused(
      [](Chain&, FullyShardOptions& options) { options.ignored = {"tail"}; },
      [](Chain&) {}, "options.ignored: \"tail\" names no parameter");
}

TEST(Refused, T35AnIgnoredParameterTiedToAShardedOne) {
  expect_refused(
      [](Chain& model, FullyShardOptions& options) {
        model->register_parameter("tied", model->layer(0).weight);
        options.ignored = {"tied"};
      },
      [](Chain&) {},
      "parameter layers.0.weight is the same as tied, but only tied is in "
      "options.ignored");
}

TEST(Refused, T35ATiedParameterWithOptionsOfTwoModules) {
  expect_refused(
      [](Chain& model, FullyShardOptions& options) {
        model->layer(1).register_parameter("again", model->layer(0).weight);
        options.mixed_precision.param_dtype = torch::kBFloat16;
        options.units = units::with_options(
            units::by_name("layers.0"), {.output_dtype = torch::kFloat});
      },
      [](Chain&) {},
      "parameter layers.0.weight is the same as layers.1.again, but module "
      "layers.0 has param_dtype BFloat16, reduce_dtype none, output_dtype "
      "Float, inputs cast, and module layers.1 has param_dtype BFloat16, "
      "reduce_dtype none, output_dtype none");
}

// Those that could go on do not wait for the one that cannot.
TEST(Refused, T36OnEveryRankWhatOneRankGetsWrong) {
  expect_all_ok(run_ranks(3, [](World world) {
    Chain model(2, 3);
    FullyShardOptions options;
    if (world.rank() == 1) {
      options.ignored = {"tail"};
    }
    const auto error =
        error_of([&] { (void)fully_shard(*model, world, options); });
    EXPECT_THAT(
        error, HasSubstr("options.ignored: \"tail\" names no parameter"));
    if (world.rank() != 1) {
      EXPECT_THAT(error, HasSubstr("rank 1 cannot shard its module: "));
    }
    auto fsdp = fully_shard(*model, world);
    model->forward(integer_rows(0, world.rank(), 3)).sum().backward();
  }));
}

TEST(Refused, T36UnitsThatOnlySomeRanksKeepWhole) {
  expect_all_ok(run_ranks(2, [](World world) {
    Chain model(2, 3);
    auto options = over_messages();
    options.units = units::with_options(
        units::children_of_lists(), {.keep_whole = world.rank() == 1});
    options.strategy = Strategy::kShardGradOp;
    EXPECT_THAT(
        error_of([&] { (void)fully_shard(*model, world, options); }),
        HasSubstr("kept whole"));
  }));
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
    const std::vector<std::pair<MeshOptions, std::string>> wrong = {
        {{.replicate = 3}, "mesh replicate 3 x shard 1 has 3 places"},
        {{.replicate = 2, .shard = 3},
         "mesh replicate 2 x shard 3 has 6 places"},
        {{.replicate = 1, .shard = 2},
         "mesh replicate 1 x shard 2 has 2 places"}};
    for (const auto& [options, found] : wrong) {
      EXPECT_EQ(
          error_of([&] { (void)fully_shard(*model, Mesh(world, options)); }),
          "[world] " + found + ", but the world has 4 ranks");
    }
    EXPECT_EQ(
        error_of([&] { const Mesh none(world, {.replicate = 0}); }),
        "[world] expected at least one replica in a mesh, found 0");
    auto fsdp = fully_shard(*model, Mesh(world, {.replicate = 1, .shard = 4}));
    model->forward(integer_rows(0, world.rank(), 3)).sum().backward();
  }));
}

}  // namespace
}  // namespace sherd::test
