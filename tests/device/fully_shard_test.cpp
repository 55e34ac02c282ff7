// SPDX-License-Identifier: Apache-2.0
//
// Sharded training on devices: the bits of training on CPUs, without a wait of the host and without new
// memory once a step is planned, and errors for what cannot be.
#include <optional>
#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>
#include "device/device_parity.h"
#include "support/error_of.h"
#include "support/meta_module.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

enum class On { kDevice, kCpu };
enum class Update { kAdamW, kByHand };

struct Recipe {
  const char* name = "";
  FullyShardOptions options = {};
  int micro_batches = 1;
  std::optional<double> max_norm = std::nullopt;
  Update update = Update::kAdamW;
  std::function<CommHookPtr()> make_hook = nullptr;  // One for each rank.

  FullyShardOptions options_of_rank() const {
    auto mine = options;
    mine.hook = make_hook ? make_hook() : nullptr;
    return mine;
  }
};

// What a rank knows after training.
struct Outcome {
  std::vector<double> losses = {};
  std::vector<double> norms = {};
  std::vector<torch::Tensor> parameters = {};
  std::int64_t steps_planned = 0;
};

FullyShardOptions by_layer() {
  FullyShardOptions options;
  options.units = units::by_name("*");
  return options;
}

class ShardedTrainer {
 public:
  ShardedTrainer(const World& world, c10::Device device, const Recipe& recipe)
      : device_(device),
        rank_(world.rank()),
        recipe_(recipe),
        fsdp(fully_shard(*model, world, recipe.options_of_rank())),
        optimizer(fsdp.named_parameters(), {.learning_rate = 0.05}) {
    for (int batch = 0; batch < kBatches; ++batch) {
      batches_.push_back(batch_on(device, batch, rank_));
    }
  }

  // Its loss stays where it is.
  torch::Tensor step(int number) {
    torch::Tensor loss;
    for (int micro = 1; micro <= recipe_.micro_batches; ++micro) {
      std::optional<NoSyncScope> local;
      if (micro < recipe_.micro_batches) {
        local.emplace(fsdp.no_sync());
      }
      loss = loss_of(
          model,
          batches_[static_cast<std::size_t>((number + micro) % kBatches)]);
      loss.backward();
    }
    if (recipe_.max_norm) {
      norms.push_back(fsdp.clip_grad_norm(*recipe_.max_norm));
    }
    update();
    return loss.detach();
  }

 private:
  void update() {
    if (recipe_.update == Update::kAdamW) {
      optimizer.step();
      optimizer.zero_grad();
    } else {
      descend_by_hand(fsdp);
    }
  }

  static constexpr int kBatches = 4;
  const c10::Device device_;
  const int rank_;
  const Recipe& recipe_;
  std::vector<torch::Tensor> batches_;

 public:
  DeviceMlp model = mlp_on(device_);
  FullyShardedDataParallel fsdp;
  AdamW optimizer;
  std::vector<double> norms;
};

Outcome outcome_of(
    const World& world, c10::Device device, const Recipe& recipe) {
  ShardedTrainer trainer(world, device, recipe);
  Outcome outcome;
  for (int step = 0; step < 4; ++step) {
    outcome.losses.push_back(trainer.step(step).item<double>());
  }
  outcome.norms = trainer.norms;
  const auto whole = trainer.fsdp.summon_full_parameters({.read_only = true});
  for (const auto& item : trainer.model->named_parameters()) {
    outcome.parameters.push_back(whole.tensor(item.key()).cpu().clone());
  }
  outcome.steps_planned = trainer.fsdp.report().plan.steps_planned;
  return outcome;
}

// By rank.
std::vector<Outcome> outcomes(
    int ranks,
    On where,
    Recipe recipe,
    const DeviceRanksOptions& options = {}) {
  recipe.options.exchange = ExchangeKind::kCollective;
  std::vector<Outcome> all(static_cast<std::size_t>(ranks));
  run_device_ranks(
      ranks,
      [&](const DeviceRank& self) {
        all[static_cast<std::size_t>(self.world.rank())] = outcome_of(
            self.world,
            where == On::kDevice ? self.device : c10::Device(c10::kCPU),
            recipe);
      },
      options);
  return all;
}

std::vector<Recipe> recipes() {
  std::vector<Recipe> all;
  all.push_back({.name = "full_shard", .options = by_layer()});
  all.push_back({.name = "shard_grad_op", .options = by_layer()});
  all.back().options.strategy = Strategy::kShardGradOp;
  all.push_back({.name = "no_shard", .options = by_layer()});
  all.back().options.strategy = Strategy::kNoShard;
  // Room for one layer more than a visit needs.
  all.push_back({.name = "budget, two ahead", .options = by_layer()});
  all.back().options.budget_bytes = 2048;
  all.back().options.prefetch_visits = 2;
  all.push_back({.name = "mixed precision", .options = by_layer()});
  all.back().options.mixed_precision.param_dtype = torch::kBFloat16;
  all.back().options.mixed_precision.reduce_dtype = torch::kFloat;
  // Gradients that are kept are wider than those that join them.
  all.push_back(all.back());
  all.back().name = "micro-batches in mixed precision";
  all.back().micro_batches = 3;
  all.push_back({.name = "clipping", .options = by_layer(), .max_norm = 0.5});
  all.push_back({.name = "bf16 hook", .options = by_layer()});
  all.back().make_hook = [] { return compress(torch::kBFloat16); };
  all.push_back({.name = "mean hook, mixed precision", .options = by_layer()});
  all.back().make_hook = [] { return all_reduce_mean(); };
  all.back().options.mixed_precision.param_dtype = torch::kBFloat16;
  all.push_back({.name = "PowerSGD, no_shard", .options = by_layer()});
  all.back().options.strategy = Strategy::kNoShard;
  all.back().make_hook = [] { return power_sgd({.start_step = 1}); };
  return all;
}

void expect_same_parameters(
    const Outcome& found, const Outcome& expected, Update update) {
  ASSERT_EQ(found.parameters.size(), expected.parameters.size());
  for (std::size_t p = 0; p < found.parameters.size(); ++p) {
    const auto& mine = found.parameters[p];
    const auto& other = expected.parameters[p];
    EXPECT_TRUE(
        update == Update::kByHand ? torch::equal(mine, other)
                                  : torch::allclose(mine, other, 1e-5, 1e-6))
        << "parameter " << p << ": " << (mine - other).abs().max();
  }
}

void expect_trains_as_on_the_cpu(
    int ranks, const Recipe& recipe, const DeviceRanksOptions& options = {}) {
  const auto found = outcomes(ranks, On::kDevice, recipe, options);
  const auto expected = outcomes(ranks, On::kCpu, recipe);
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    if (recipe.update == Update::kByHand) {
      EXPECT_EQ(found[rank].losses, expected[rank].losses);
      EXPECT_EQ(found[rank].norms, expected[rank].norms);
    }
    EXPECT_EQ(found[rank].steps_planned, expected[rank].steps_planned);
    expect_same_parameters(found[rank], expected[rank], recipe.update);
  }
}

TEST(DeviceFullyShard, T30TrainsToTheBitsOfTheCpu) {
  for (auto recipe : recipes()) {
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(::testing::Message() << recipe.name << " on " << ranks);
      recipe.update = Update::kByHand;
      expect_trains_as_on_the_cpu(ranks, recipe);
    }
  }
}

TEST(DeviceFullyShard, T30DeterministicSumsHaveTheBitsOfTheCpu) {
  const DeviceRanksOptions backwards{.sums_backwards = true};
  for (auto recipe : recipes()) {
    SCOPED_TRACE(recipe.name);
    recipe.update = Update::kByHand;
    // Hooks sum as the backend does.
    if (!recipe.make_hook && recipe.micro_batches == 1 && !recipe.max_norm) {
      const DeterministicAlgorithms on;
      expect_trains_as_on_the_cpu(3, recipe, backwards);
    }
  }
  const Recipe recipe{.options = by_layer(), .update = Update::kByHand};
  const auto found = outcomes(3, On::kDevice, recipe, backwards)[0].parameters;
  const auto on_cpu = outcomes(3, On::kCpu, recipe)[0].parameters;
  EXPECT_FALSE(std::equal(
      found.begin(), found.end(), on_cpu.begin(),
      [](const auto& a, const auto& b) { return torch::equal(a, b); }));
}

TEST(DeviceFullyShard, TrainsWithAdamWAsOnTheCpu) {
  for (const auto& recipe : recipes()) {
    if (!recipe.make_hook) {  // Hooks know nothing of optimizers.
      SCOPED_TRACE(recipe.name);
      expect_trains_as_on_the_cpu(2, recipe);
    }
  }
}

TEST(DeviceFullyShard, APlannedStepMakesTheHostNeitherWaitNorAllocate) {
  for (const auto& recipe : recipes()) {
    if (recipe.max_norm) {
      continue;  // Its norm is a number for the host.
    }
    for (const int ranks : {1, 2, 4}) {
      SCOPED_TRACE(::testing::Message() << recipe.name << " on " << ranks);
      run_device_ranks(ranks, [&](const DeviceRank& self) {
        ShardedTrainer trainer(self.world, self.device, recipe);
        for (int step = 0; step < 3; ++step) {
          trainer.step(step);
        }
        const auto planned = trainer.fsdp.report().plan.steps_planned;
        trainer.fsdp.synchronize();
        const auto before = host_synchronisations(self.device);
        torch::Tensor loss;
        {
          const CaptureScope capture(self.device);
          loss = trainer.step(3);
        }
        EXPECT_EQ(host_synchronisations(self.device), before);
        trainer.fsdp.synchronize();
        if (ranks > 1 && recipe.options.strategy != Strategy::kNoShard) {
          EXPECT_EQ(trainer.fsdp.report().plan.steps_planned, planned + 1);
        }
      });
    }
  }
}

// With one rank, whole parameters are made there; two ranks have shards of them.
TEST(DeviceFullyShard, T48AModelOnTheMetaDeviceGetsMemoryOnTheDevice) {
  for (const int ranks : {1, 2}) {
    expect_as_on_the_cpu(ranks, [](const World& world, c10::Device device) {
      auto model = on_meta(DeviceMlp());
      auto options = layers_by_messages();
      options.device = device;
      options.initialise = values_like(DeviceMlp());
      auto fsdp = fully_shard(*model, world, options);
      for (const auto& slice : fsdp.parameters()) {
        EXPECT_EQ(slice.device(), device);
      }
      for (int step = 0; step < 3; ++step) {
        loss_of(model, batch_on(device, step, world.rank())).backward();
        descend_by_hand(fsdp);
      }
      return whole_parameters_of(fsdp, *model);
    });
  }
}

// Three ranks have shards of different sizes.
TEST(DeviceFullyShard, EvaluatesUnderInferenceMode) {
  for (const bool by_hand : {false, true}) {
    run_device_ranks(3, [&](const DeviceRank& self) {
      auto model = mlp_on(self.device);
      auto fsdp = fully_shard(*model, self.world, by_layer());
      const auto batch = batch_on(self.device, 0, self.world.rank());
      torch::Tensor evaluated;
      {
        const c10::InferenceMode inference;
        if (by_hand) {
          (void)fsdp.summon_full_parameters({.read_only = true});
        }
        evaluated = loss_of(model, batch);
      }
      const auto trained = loss_of(model, batch);
      trained.backward();
      EXPECT_TRUE(torch::equal(evaluated.cpu(), trained.detach().cpu()));
    });
  }
}

TEST(DeviceFullyShard, ANormIsOneWaitOfTheHost) {
  const Recipe recipe{.options = by_layer(), .max_norm = 0.5};
  run_device_ranks(2, [&](const DeviceRank& self) {
    ShardedTrainer trainer(self.world, self.device, recipe);
    for (int step = 0; step < 3; ++step) {
      trainer.step(step);
    }
    const auto before = host_synchronisations(self.device);
    trainer.step(3);
    EXPECT_EQ(host_synchronisations(self.device), before + 1);
  });
}

// What fully_shard() says on every rank.
void expect_refused(
    const std::function<void(const DeviceRank&)>& call,
    const ::testing::Matcher<const std::string&>& expected,
    DeviceRanksOptions options = {}) {
  options.disorderly = true;
  run_device_ranks(
      2,
      [&](const DeviceRank& self) {
        EXPECT_THAT(error_of([&] { call(self); }), expected);
      },
      options);
}

TEST(DeviceFullyShard, ParametersOnTwoDevicesAreAnErrorThatNamesThem) {
  expect_refused(
      [](const DeviceRank& self) {
        auto model = mlp_on(self.device);
        model->third->to(torch::kCPU);
        model->third->to(checking_device(self.world.rank() + 4));
        (void)fully_shard(*model, self.world, by_layer());
      },
      AllOf(
          HasSubstr("parameter third.weight of unit third is on checking:"),
          HasSubstr("of unit (root) on checking:"),
          HasSubstr("expected all parameters on one device")));
}

TEST(DeviceFullyShard, ParametersOnADeviceAndTheCpuAreAnErrorThatNamesThem) {
  // On one rank alone, too.
  for (const bool everywhere : {true, false}) {
    expect_refused(
        [&](const DeviceRank& self) {
          auto model = mlp_on(self.device);
          if (everywhere || self.world.rank() == 1) {
            model->second->to(torch::kCPU);
          }
          (void)fully_shard(*model, self.world, by_layer());
        },
        AllOf(
            HasSubstr("parameter second.weight of unit second is on cpu"),
            HasSubstr("of unit (root) on checking:")));
  }
}

TEST(DeviceFullyShard, ParametersBesideTheChosenDeviceAreAnErrorThatNamesBoth) {
  expect_refused(
      [](const DeviceRank& self) {
        auto model = mlp_on(c10::kCPU);
        auto options = by_layer();
        options.device = self.device;
        (void)fully_shard(*model, self.world, options);
      },
      AllOf(
          HasSubstr("of unit (root) is on cpu"),
          HasSubstr("options.device, checking:")));
  expect_refused(
      [](const DeviceRank& self) {
        auto model = mlp_on(self.device);
        auto options = by_layer();
        options.device = c10::kMeta;
        (void)fully_shard(*model, self.world, options);
      },
      HasSubstr("options.device: expected a device with memory, found meta"));
}

// Rank 1 has no block of more than `bytes_max` bytes in that part of a step. Expects that both ranks
// are told at once, and of the unit.
enum class Part { kForward, kBackward };
void expect_no_memory(Part part, std::size_t bytes_max) {
  expect_refused(
      [=](const DeviceRank& self) {
        torch::nn::Sequential model(
            torch::nn::Linear(64, 64), torch::nn::Linear(64, 64));
        for (const auto& parameter : model->parameters()) {
          torch::nn::init::constant_(parameter, 0.01);
        }
        model->to(self.device);
        auto options = by_layer();
        options.units = units::none();
        const auto fsdp = fully_shard(*model, self.world, options);
        const auto x = torch::ones({1, 64}, self.device);
        std::optional<OutOfMemoryScope> full;
        const auto begin = [&](Part now) {
          if (now == part && self.world.rank() == 1) {
            full.emplace(self.device, bytes_max);
          }
        };
        begin(Part::kForward);
        const auto loss = model->forward(x).sum();
        begin(Part::kBackward);
        loss.backward();
      },
      AllOf(
          HasSubstr("no memory for unit (root), 33"), HasSubstr(" bytes"),
          HasSubstr("out of memory")));
}

TEST(DeviceFullyShard, NoMemoryForAUnitIsAnErrorOfAllThatNamesIt) {
  expect_no_memory(Part::kForward, 20'000);
}

TEST(DeviceFullyShard, NoMemoryForGradientsIsAnErrorOfAllThatNamesTheUnit) {
  expect_no_memory(Part::kBackward, 20'000);
}

TEST(DeviceFullyShard, RanksWithOtherDevicesAreAnErrorOnAllOfThem) {
  expect_refused(
      [](const DeviceRank& self) {
        auto model = mlp_on(
            self.world.rank() == 0 ? self.device : torch::Device(torch::kCPU));
        (void)fully_shard(*model, self.world, by_layer());
      },
      AllOf(
          HasSubstr("rank 0 has"), HasSubstr("on checking devices"),
          HasSubstr("parameters on the CPU")));
}

TEST(DeviceFullyShard, AWorldWithoutABackendForTheDeviceSaysSo) {
  expect_refused(
      [](const DeviceRank& self) {
        (void)fully_shard(*mlp_on(self.device), self.world, by_layer());
      },
      HasSubstr("ranks cannot exchange memory of checking:"),
      {.with_backends = false});
}

TEST(DeviceFullyShard, WhatIsForTheCpuAloneIsRefusedByName) {
  const std::vector<
      std::pair<std::string, std::function<void(FullyShardOptions&)>>>
      refused = {
          {"options.share_gradients",
           [](auto& options) { options.share_gradients = true; }},
          {"memory of the host", [](auto& options) {
             options.exchange = ExchangeKind::kSharedMemory;
           }}};
  for (const auto& [text, change] : refused) {
    SCOPED_TRACE(text);
    expect_refused(
        [&](const DeviceRank& self) {
          auto options = by_layer();
          change(options);
          (void)fully_shard(*mlp_on(self.device), self.world, options);
        },
        AllOf(HasSubstr("parameters are on checking:"), HasSubstr(text)));
  }
}

}  // namespace
}  // namespace sherd::test
