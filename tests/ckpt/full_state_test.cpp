// SPDX-License-Identifier: Apache-2.0
//
// A job's state whole on rank 0, and what each rank has of its own. Ids are those
// of docs/design/tests.md.
#include <functional>
#include <map>
#include <stdexcept>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/replicate.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/adamw.h>
#include "support/error_of.h"
#include "support/parity.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class FullState : public ::testing::TestWithParam<int> {};

torch::nn::Sequential three_layers() {
  torch::manual_seed(5);
  return torch::nn::Sequential(
      torch::nn::Linear(3, 7), torch::nn::BatchNorm1d(7),
      torch::nn::Linear(7, 2));
}

torch::Tensor loss_of(torch::nn::Sequential& model) {
  return model->forward(torch::arange(12.0F).view({4, 3})).square().mean();
}

// Three layers sharded by a rank, with an optimizer, as a state has them.
struct StateOfThreeLayers {
  torch::nn::Sequential model = three_layers();
  FullyShardedDataParallel fsdp;
  AdamW adamw = AdamW(fsdp.named_parameters());
  CheckpointState state;

  explicit StateOfThreeLayers(
      const World& world, const FullyShardOptions& options = {})
      : fsdp(fully_shard(*model, world, options)) {
    state.add(fsdp.named_parameters());
    state.add_buffers(*model);
    state.add("adamw", adamw, fsdp.named_parameters());
  }

  float step() {
    auto loss = loss_of(model);
    loss.backward();
    adamw.step();
    adamw.zero_grad();
    return loss.item<float>();
  }

  float evaluate() {
    const torch::NoGradGuard no_grad;
    model->eval();
    const auto loss = loss_of(model).item<float>();
    model->train();
    return loss;
  }
};

TEST_P(FullState, T45IsOnRankZeroAloneAndLoadsIntoAPlainModel) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    StateOfThreeLayers job(world);
    job.step();
    std::map<std::string, torch::Tensor> found;
    gather_full_state(
        world, job.state,
        [&](const std::string& section, const std::string& name,
            const torch::Tensor& tensor) {
          EXPECT_TRUE(found.emplace(section + " " + name, tensor).second);
        });
    auto plain = three_layers();
    NamedParameters own;
    for (const auto& item : plain->named_parameters()) {
      own.items.push_back({item.key(), item.value()});
    }
    AdamW reference(own);
    loss_of(plain).backward();
    reference.step();
    if (world.rank() != 0) {
      EXPECT_THAT(found, IsEmpty());
      return;
    }
    const auto parameters = plain->named_parameters();
    EXPECT_EQ(
        found.size(), 4 * parameters.size() + plain->named_buffers().size());
    for (const auto& item : parameters) {
      const auto& name = item.key();
      expect_close(found["model " + name], item.value().detach(), 1e-6, name);
      expect_close(
          found["adamw exp_avg." + name].view({-1}),
          reference.state(name).exp_avg.view({-1}), 1e-6, name);
      EXPECT_EQ(found["adamw step." + name].item<float>(), 1.0F);
    }
    auto fresh = three_layers();
    const torch::NoGradGuard no_grad;
    for (auto& item : fresh->named_parameters()) {
      item.value().copy_(found["model " + item.key()]);
    }
    for (auto& item : fresh->named_buffers()) {
      item.value().copy_(found["model " + item.key()]);
    }
    expect_close(loss_of(fresh), loss_of(plain), 1e-5, "loss");
  }));
}

// Running statistics are those of a rank's own rows; a mixture would be nobody's.
TEST_P(FullState, BuffersAreThoseOfRankZero) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() + "/run";
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    auto model = three_layers();
    auto fsdp = fully_shard(*model, world);
    const auto x = torch::arange(12.0F).view({4, 3}) * (1 + world.rank());
    for (int pass = 0; pass <= world.rank(); ++pass) {
      const torch::NoGradGuard no_grad;
      model->forward(x);
    }
    std::map<std::string, torch::Tensor> first;
    for (const auto& item : model->named_buffers()) {
      first[item.key()] = item.value().clone();
      world.broadcast({first[item.key()]});
    }
    EXPECT_EQ(
        torch::equal(
            model->named_buffers()["1.running_mean"], first["1.running_mean"]),
        world.rank() == 0);
    CheckpointState state;
    state.add_buffers(*model);
    CheckpointSaver saver(world, folder);
    saver.save(1, state);
    gather_full_state(
        world, state,
        [&](const std::string&, const std::string& name,
            const torch::Tensor& tensor) {
          if (first.contains(name)) {
            EXPECT_TRUE(torch::equal(tensor, first[name])) << name;
          }
        });
    for (auto& buffer : model->buffers()) {
      buffer.fill_(9);
    }
    load_checkpoint(world, folder + "/step-1", state);
    for (const auto& item : model->named_buffers()) {
      EXPECT_TRUE(torch::equal(item.value(), first[item.key()])) << item.key();
    }
    // As what `state.add` says.
    const auto mine = torch::full({5}, 1.0 + world.rank());
    CheckpointState own;
    own.add(
        "mine",
        {.name = "t",
         .shape = {5},
         .elements = mine,
         .copies = Copies::kRank0});
    saver.save(2, own);
    load_checkpoint(world, folder + "/step-2", own);
    EXPECT_TRUE(torch::equal(mine, torch::ones({5})));
    EXPECT_THAT(
        error_of([&] {
          own.add(
              "mine",
              {.name = "u",
               .shape = {10},
               .elements = mine,
               .ranks = 2,
               .copies = Copies::kRank0});
        }),
        HasSubstr("expected a tensor that every rank has whole"));
  }));
}

// The others hear of it, and the world is good for more.
TEST_P(FullState, T45AVisitThatThrowsIsToldToAll) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto model = three_layers();
    auto fsdp = fully_shard(*model, world);
    CheckpointState state;
    state.add(fsdp.named_parameters());
    EXPECT_THAT(
        error_of([&] {
          gather_full_state(
              world, state,
              [](const std::string&, const std::string&, const torch::Tensor&) {
                throw std::runtime_error("no room, says the test");
              });
        }),
        HasSubstr("no room, says the test"));
    int tensors = 0;
    gather_full_state(
        world, state,
        [&](const std::string&, const std::string&, const torch::Tensor&) {
          ++tensors;
        });
    EXPECT_EQ(tensors, world.rank() == 0 ? 6 : 0);
  }));
}

TEST_P(FullState, T45ComesFromRankZeroAndGoesOn) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    StateOfThreeLayers job(world);
    const auto untrained = gather_full_state(world, job.state);
    const auto first = job.step();
    const auto trained = gather_full_state(world, job.state);
    const auto second = job.step();
    scatter_full_state(world, trained, job.state);
    EXPECT_EQ(job.step(), second);
    // An optimizer without state is one that has never made a step.
    scatter_full_state(world, untrained, job.state);
    EXPECT_EQ(job.step(), first);
    EXPECT_EQ(job.step(), second);
    // Tensors of any strides, which are copied.
    auto turned = trained;
    for (auto& [name, tensor] : turned["model"]) {
      if (tensor.dim() == 2) {
        tensor = tensor.t().contiguous().t();
      }
    }
    const auto report = scatter_full_state(world, turned, job.state);
    EXPECT_EQ(job.step(), second);
    EXPECT_GT(report.bytes_read, 0);
  }));
}

// A frozen unit stays whole over steps, but not over loading.
TEST_P(FullState, FrozenValuesThatAreLoadedInTheMiddleOfARunAreUsed) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    for (const auto exchange :
         {ExchangeKind::kAuto, ExchangeKind::kCollective}) {
      const auto frozen_first = [] {
        auto model = three_layers();
        for (auto& parameter : model[0]->parameters()) {
          parameter.requires_grad_(false);
        }
        return model;
      };
      auto model = frozen_first();
      auto fsdp = fully_shard(
          *model, world,
          {.units = units::by_name("*"),
           .strategy = Strategy::kShardGradOp,
           .exchange = exchange});
      AdamW adamw(fsdp.named_parameters());
      CheckpointState state;
      state.add(fsdp.named_parameters());
      const auto train = [&](int steps) {
        for (int step = 0; step < steps; ++step) {
          loss_of(model).backward();
          adamw.step();
          adamw.zero_grad();
        }
      };
      const auto expect_loss_of = [&](sherd::FullState& full) {
        auto plain = frozen_first();
        auto loss = torch::zeros({1});
        if (world.rank() == 0) {
          const torch::NoGradGuard no_grad;
          for (auto& item : plain->named_parameters()) {
            item.value().copy_(full["model"][item.key()]);
          }
          loss.fill_(loss_of(plain).item<float>());
        }
        world.broadcast({loss});
        const torch::NoGradGuard no_grad;
        const auto found = loss_of(model);
        EXPECT_NEAR(found.item<float>(), loss.item<float>(), 1e-5);
      };
      train(3);
      const auto before = gather_full_state(world, state);
      auto other = before;
      if (world.rank() == 0) {
        auto& weight = other["model"]["0.weight"];
        weight = weight *
            torch::linspace(-1, 3, weight.numel()).view(weight.sizes());
      }
      scatter_full_state(world, other, state);
      expect_loss_of(other);
      const auto folder =
          scratch.path() + "/" + std::to_string(static_cast<int>(exchange));
      CheckpointSaver(world, folder).save(1, state);
      train(1);
      scatter_full_state(world, before, state);
      train(2);
      load_checkpoint(world, folder + "/step-1", state);
      expect_loss_of(other);
    }
  }));
}

std::vector<FullyShardOptions> of_each_exchange_and_precision() {
  std::vector<FullyShardOptions> all;
  for (const auto exchange : {ExchangeKind::kAuto, ExchangeKind::kCollective}) {
    all.push_back({.exchange = exchange});
    all.push_back(
        {.exchange = exchange,
         .mixed_precision = {.param_dtype = torch::kBFloat16}});
  }
  return all;
}

// Where ranks share memory, one of them may evaluate alone; the others go on to load.
TEST_P(FullState, ComesAfterAnEvaluation) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    int folders = 0;
    for (const auto& options : of_each_exchange_and_precision()) {
      for (const bool one_rank : {false, true}) {
        if (one_rank && options.exchange == ExchangeKind::kCollective) {
          continue;
        }
        StateOfThreeLayers job(world, options);
        const auto evaluate = [&] {
          if (!one_rank || world.rank() == 0) {
            (void)job.evaluate();
          }
        };
        job.step();
        const auto folder = scratch.path() + "/" + std::to_string(folders++);
        CheckpointSaver(world, folder).save(1, job.state);
        const auto saved = gather_full_state(world, job.state);
        const std::vector<float> expected = {job.step(), job.step()};
        evaluate();
        load_checkpoint(world, folder + "/step-1", job.state);
        evaluate();
        EXPECT_EQ(job.step(), expected[0]);
        EXPECT_EQ(job.step(), expected[1]);
        evaluate();
        scatter_full_state(world, saved, job.state);
        EXPECT_EQ(job.step(), expected[0]);
        evaluate();
        EXPECT_EQ(job.step(), expected[1]);
      }
    }
  }));
}

TEST_P(FullState, ComesFromTensorFilesAfterAnEvaluation) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto file =
        scratch.path() + "/" + std::to_string(world.rank()) + ".pt";
    torch::save(three_layers(), file);
    for (const auto& options : of_each_exchange_and_precision()) {
      auto model = three_layers();
      auto fsdp = fully_shard(*model, world, options);
      AdamW adamw(fsdp.named_parameters());
      CheckpointState state;
      state.add(fsdp.named_parameters());
      state.add_buffers(*model);
      const auto step = [&] {
        auto loss = loss_of(model);
        loss.backward();
        adamw.step();
        adamw.zero_grad();
        return loss.item<float>();
      };
      const auto untrained = step();
      EXPECT_NE(step(), untrained);
      {
        const torch::NoGradGuard no_grad;
        (void)loss_of(model);
      }
      load_tensor_files(world, {file}, state);
      EXPECT_EQ(step(), untrained);
    }
  }));
}

using Spoil = std::function<void(sherd::FullState&)>;

// What is wrong with a full state, and a part of the error.
std::vector<std::pair<Spoil, std::string>> spoilt_states() {
  return {
      {[](sherd::FullState& full) { full["model"].erase("0.bias"); },
       "found no model 0.bias"},
      {[](sherd::FullState& full) {
         full["model"]["0.bias"] = torch::ones({8});
       },
       "model 0.bias: expected F32 [7] as rank"},
      {[](sherd::FullState& full) {
         auto& weight = full["model"]["0.weight"];
         weight = weight.t();
       },
       "found F32 [3, 7] in the full state"},
      {[](sherd::FullState& full) {
         auto& weight = full["model"]["2.weight"];
         weight = weight.to(torch::kDouble);
       },
       "model 2.weight: expected F32 [2, 7]"},
      {[](sherd::FullState& full) {
         full["model"]["9.bias"] = torch::ones({7});
       },
       "found model 9.bias"},
      {[](sherd::FullState& full) {
         full["model"]["1.running_mean"] = torch::Tensor();
       },
       "1.running_mean: expected a dense tensor with memory"},
      {[](sherd::FullState& full) { full["adamw"].erase("exp_avg_sq.0.bias"); },
       "found no adamw exp_avg_sq.0.bias"},
      {[](sherd::FullState& full) {
         full["adamw"]["exp_avg.0.bias"] = torch::ones({1});
       },
       "adamw exp_avg.0.bias: expected F32 [7]"},
      {[](sherd::FullState& full) { full.erase("adamw"); },
       "found no adamw exp_avg.0.bias"},
      {[](sherd::FullState& full) {
         full["sgd"]["momentum.0.bias"] = torch::Tensor();
       },
       "momentum.0.bias: expected a dense tensor with memory"}};
}

TEST_P(FullState, T45WhatDoesNotFitIsNamedOnEveryRank) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    StateOfThreeLayers job(world);
    job.step();
    auto& state = job.state;
    const auto good = gather_full_state(world, state);
    for (const auto& [spoil, expected] : spoilt_states()) {
      auto full = good;
      if (world.rank() == 0) {
        spoil(full);
      }
      EXPECT_THAT(
          error_of([&] { scatter_full_state(world, full, state); }),
          HasSubstr(expected));
    }
    const auto kept = gather_full_state(world, state);
    for (const auto& [section, tensors] : good) {
      for (const auto& [name, tensor] : tensors) {
        EXPECT_TRUE(torch::equal(kept.at(section).at(name), tensor)) << name;
      }
    }
    auto other = good;
    if (world.rank() == 0) {
      other["model"].erase("0.bias");
      other["model"]["9.bias"] = torch::ones({7});
      other["model"]["2.bias"] = torch::tensor({3.0F, 4.0F});
    }
    const auto report =
        scatter_full_state(world, other, state, {.strict = false});
    EXPECT_THAT(report.missing, ElementsAre("model 0.bias"));
    EXPECT_THAT(report.unexpected, ElementsAre("model 9.bias"));
    const auto scope = job.fsdp.summon_full_parameters({.read_only = true});
    EXPECT_TRUE(
        torch::equal(scope.tensor("2.bias"), torch::tensor({3.0F, 4.0F})));
  }));
}

TEST_P(FullState, RanksThatDisagreeAreToldWhere) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    CheckpointState state;
    const auto mine = torch::zeros({2 + world.rank()});
    state.add(
        "model", {.name = "t", .shape = mine.sizes().vec(), .elements = mine});
    EXPECT_THAT(
        error_of([&] { gather_full_state(world, state, nullptr); }),
        HasSubstr("model t: expected the same of all ranks"));
  }));
}

at::Generator seeded(int seed) {
  return at::make_generator<at::CPUGeneratorImpl>(
      static_cast<std::uint64_t>(seed));
}

// A generator is each rank's own; a rank that is new keeps what it has.
TEST_P(FullState, GeneratorsGoOnOnEachRank) {
  const ScratchFolder scratch;
  const auto folder = scratch.path() + "/run";
  const int ranks = GetParam();
  expect_all_ok(run_ranks(ranks, [&](World world) {
    CheckpointState state;
    state.add_generator("dropout", seeded(world.rank()));
    CheckpointSaver(world, folder).save(1, state);
  }));
  expect_all_ok(run_ranks(ranks + 1, [&](World world) {
    CheckpointState state;
    auto generator = seeded(100);
    state.add_generator("dropout", generator);
    load_checkpoint(world, folder + "/step-1", state);
    const bool known = world.rank() < ranks;
    EXPECT_TRUE(torch::equal(
        torch::rand({5}, generator),
        torch::rand({5}, seeded(known ? world.rank() : 100))));
  }));
}

TEST_P(FullState, GeneratorsOfMoreRanksThanNowAreLeftOut) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto generator = seeded(world.rank());
    CheckpointState state;
    state.add_generator("dropout", generator);
    auto full = gather_full_state(world, state);
    if (world.rank() == 0) {
      auto& generators = full["generators"];
      generators["dropout.rank-99"] = generators.at("dropout.rank-0");
    }
    (void)torch::rand({5}, generator);
    const auto report = scatter_full_state(world, full, state);
    EXPECT_THAT(report.unexpected, IsEmpty());
    EXPECT_TRUE(torch::equal(
        torch::rand({5}, generator), torch::rand({5}, seeded(world.rank()))));
    if (world.rank() == 0) {
      auto& generators = full["generators"];
      generators["other.rank-0"] = generators.at("dropout.rank-0");
    }
    EXPECT_THAT(
        error_of([&] { scatter_full_state(world, full, state); }),
        HasSubstr("found generators other.rank-0"));
  }));
}

// It receives what comes after, too, so that rank 0 does not wait for it.
TEST_P(FullState, AGeneratorThatRefusesItsStateIsToldToAll) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto model = three_layers();
    auto fsdp = fully_shard(*model, world);
    CheckpointState state;
    state.add(fsdp.named_parameters());
    state.add_generator("dropout", seeded(world.rank()));
    const auto good = gather_full_state(world, state);
    const auto last = "dropout.rank-" + std::to_string(world.size() - 1);
    auto full = good;
    if (world.rank() == 0) {
      auto& refused = full["generators"].at(last);
      refused = torch::zeros_like(refused);
    }
    EXPECT_THAT(
        error_of([&] { scatter_full_state(world, full, state); }),
        HasSubstr("generators " + last + ": "));
    // The world is good for more.
    const auto report = scatter_full_state(world, good, state);
    EXPECT_GT(report.bytes_read, 0);
  }));
}

// Trains with an optimizer of LibTorch, and goes on from a checkpoint.
template <typename Optimizer, typename Options>
void expect_same_steps(const World& world, const Options& options) {
  const ScratchFolder scratch;
  const auto folder =
      world.all_gather_texts(scratch.path()).front() + "/checkpoints";
  struct Job {
    torch::nn::Sequential model = three_layers();
    DistributedDataParallel ddp;
    Optimizer optimizer;
    CheckpointState state;
    Job(const World& world, const Options& options)
        : ddp(replicate(*model, world)),
          optimizer(model->parameters(), options) {
      state.add(ddp.named_parameters());
      state.add_buffers(*model);
      state.add("optimizer", optimizer, ddp.named_parameters());
    }
    double step() {
      optimizer.zero_grad();
      auto loss = loss_of(model);
      loss.backward();
      optimizer.step();
      return loss.template item<double>();
    }
  };
  Job job(world, options);
  job.step();
  job.step();
  CheckpointSaver saver(world, folder);
  saver.save(2, job.state);
  Job again(world, options);
  again.step();  // Other numbers than those that are loaded.
  load_checkpoint(world, folder + "/step-2", again.state);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(again.step(), job.step()) << "step " << i;
  }
  world.barrier();  // The folder goes with the first that ends.
}

TEST_P(FullState, OptimizersOfLibTorchGoOnToo) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    namespace optim = torch::optim;
    expect_same_steps<optim::AdamW>(
        world, optim::AdamWOptions(1e-2).amsgrad(true));
    expect_same_steps<optim::Adam>(world, optim::AdamOptions(1e-2));
    expect_same_steps<optim::SGD>(world, optim::SGDOptions(1e-2).momentum(0.9));
    expect_same_steps<optim::SGD>(world, optim::SGDOptions(1e-2));
    expect_same_steps<optim::RMSprop>(
        world, optim::RMSpropOptions(1e-2).momentum(0.5).centered(true));
    expect_same_steps<optim::Adagrad>(world, optim::AdagradOptions(1e-2));
  }));
}

TEST_P(FullState, AnOptimizerOfOtherParametersIsRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto model = three_layers();
    auto other = three_layers();
    auto ddp = replicate(*model, world);
    torch::optim::SGD stranger(other->parameters(), 0.1);
    CheckpointState state;
    state.add("optimizer", stranger, ddp.named_parameters());
    EXPECT_THAT(
        error_of([&] { gather_full_state(world, state, nullptr); }),
        HasSubstr("none of those it was added with"));
    torch::optim::LBFGS odd(model->parameters());
    EXPECT_THAT(
        error_of([&] { state.add("second", odd, ddp.named_parameters()); }),
        HasSubstr("expected Adam, AdamW, SGD, RMSprop or Adagrad"));
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    FullState,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
