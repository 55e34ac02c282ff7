// SPDX-License-Identifier: Apache-2.0
//
// Optimizers of sherd and of LibTorch over shards: the numbers of one process, also when another
// number of ranks goes on from their checkpoint, or a model of another dtype does.
#include "support/parity.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/sgd.h>

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;

// ---- optimizers ----

class AnyOptimizer {
 public:
  virtual ~AnyOptimizer() = default;
  virtual void step() = 0;  // Publishes, and clears gradients.
  virtual void add_to(CheckpointState& state) = 0;
};
using MakeOptimizer =
    std::function<std::unique_ptr<AnyOptimizer>(const NamedParameters&)>;

template <typename Optimizer>
class OfTorch final : public AnyOptimizer {
 public:
  template <typename Options>
  OfTorch(const NamedParameters& parameters, const Options& options)
      : parameters_(parameters), optimizer_(slices_of(parameters), options) {}
  void step() override {
    optimizer_.step();
    if (parameters_.publish) {
      parameters_.publish();
    }
    optimizer_.zero_grad();
  }
  void add_to(CheckpointState& state) override {
    state.add("optimizer", optimizer_, parameters_);
  }

 private:
  static std::vector<torch::Tensor> slices_of(const NamedParameters& all) {
    std::vector<torch::Tensor> slices;
    for (const auto& item : all.items) {
      slices.push_back(item.slice);
    }
    return slices;
  }

  const NamedParameters parameters_;
  Optimizer optimizer_;
};

template <typename Optimizer>
class OfSherd final : public AnyOptimizer {
 public:
  template <typename Options>
  OfSherd(const NamedParameters& parameters, const Options& options)
      : parameters_(parameters), optimizer_(parameters, options) {}
  void step() override {
    optimizer_.step();
    optimizer_.zero_grad();
  }
  void add_to(CheckpointState& state) override {
    state.add("optimizer", optimizer_, parameters_);
  }

 private:
  const NamedParameters parameters_;
  Optimizer optimizer_;
};

// Muon for matrices, whole at their owners, and SGD for the rest.
class OfMuon final : public AnyOptimizer {
 public:
  explicit OfMuon(const NamedParameters& parameters)
      : parts_(split(parameters, {"*.weight"})),
        muon_(
            parts_.matching,
            {.learning_rate = 0.02, .iteration_dtype = torch::kFloat}),
        sgd_(parts_.rest, {.learning_rate = 0.1, .momentum = 0.9}) {}
  void step() override {
    muon_.step();
    sgd_.step();
    muon_.zero_grad();
    sgd_.zero_grad();
  }
  void add_to(CheckpointState& state) override {
    state.add("muon", muon_, parts_.matching);
    state.add("rest", sgd_, parts_.rest);
  }

 private:
  SplitParameters parts_;
  Muon muon_;
  Sgd sgd_;
};

template <template <typename> class Kind, typename Optimizer, typename Options>
MakeOptimizer making(const Options& options) {
  return [options](const NamedParameters& parameters) {
    return std::make_unique<Kind<Optimizer>>(parameters, options);
  };
}

struct NamedOptimizer {
  std::string name;
  MakeOptimizer make;
  double tolerance = 1e-9;
};

std::vector<NamedOptimizer> optimizers() {
  namespace optim = torch::optim;
  return {
      {"torch_adagrad",
       making<OfTorch, optim::Adagrad>(optim::AdagradOptions(0.1)
                                           .lr_decay(0.01)
                                           .weight_decay(0.01)
                                           .initial_accumulator_value(0.2))},
      {"torch_adam", making<OfTorch, optim::Adam>(optim::AdamOptions(0.05))},
      {"torch_adamw",
       making<OfTorch, optim::AdamW>(
           optim::AdamWOptions(0.05).weight_decay(0.1).amsgrad(true))},
      {"torch_rmsprop",
       making<OfTorch, optim::RMSprop>(
           optim::RMSpropOptions(0.01).momentum(0.9).centered(true))},
      {"torch_sgd",
       making<OfTorch, optim::SGD>(
           optim::SGDOptions(0.1).momentum(0.9).dampening(0.1))},
      {"adamw", making<OfSherd, AdamW>(AdamWOptions{.learning_rate = 0.05})},
      {"sgd",
       making<OfSherd, Sgd>(SgdOptions{
           .learning_rate = 0.1, .momentum = 0.9, .nesterov = true})},
      {"muon",
       [](const NamedParameters& parameters) {
         return std::make_unique<OfMuon>(parameters);
       },
       // Iterations are in fp32.
       1e-5}};
}

// ---- the job ----

torch::nn::Sequential two_layers(torch::ScalarType dtype, int seed) {
  torch::manual_seed(seed);
  torch::nn::Sequential model(
      torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 3));
  model->to(dtype);
  return model;
}

constexpr std::int64_t kRows = 12;  // Of a global batch.

torch::Tensor loss_of(
    torch::nn::Sequential& model,
    int step,
    std::int64_t begin,
    std::int64_t rows) {
  torch::manual_seed(100 + step);
  const auto dtype = model->parameters()[0].scalar_type();
  const auto x = torch::randn({kRows, 5}, torch::kDouble).to(dtype);
  return model->forward(x.narrow(0, begin, rows)).square().mean();
}

// Sharded over the ranks of a world; gradients are shared, which Muon needs.
class ShardedJob {
 public:
  ShardedJob(
      const World& world,
      const NamedOptimizer& optimizer,
      int seed,
      torch::ScalarType dtype = torch::kDouble)
      : ShardedJob(world, optimizer, two_layers(dtype, seed)) {}

  ShardedJob(
      const World& world,
      const NamedOptimizer& optimizer,
      torch::nn::Sequential model)
      : world_(world),
        model_(std::move(model)),
        fsdp_(fully_shard(
            *model_,
            world,
            {.units = units::by_name("*"), .share_gradients = true})),
        optimizer_(optimizer.make(fsdp_.named_parameters())) {
    state_.add(fsdp_.named_parameters());
    optimizer_->add_to(state_);
  }

  void step(int number) {
    const auto rows = kRows / world_.size();
    loss_of(model_, number, world_.rank() * rows, rows).backward();
    optimizer_->step();
  }
  CheckpointState& state() { return state_; }
  torch::OrderedDict<std::string, torch::Tensor> parameters() {
    return full_parameters(*model_, fsdp_);
  }
  // On rank 0; nothing elsewhere.
  sherd::FullState full_state() { return gather_full_state(world_, state_); }

 private:
  const World& world_;
  torch::nn::Sequential model_;
  FullyShardedDataParallel fsdp_;
  std::unique_ptr<AnyOptimizer> optimizer_;
  CheckpointState state_;
};

void expect_parameters_after(
    int steps, const NamedOptimizer& optimizer, ShardedJob& job) {
  auto model = two_layers(torch::kDouble, 1);
  NamedParameters plain;
  for (const auto& item : model->named_parameters()) {
    plain.items.push_back({item.key(), item.value()});
  }
  const auto reference = optimizer.make(plain);
  for (int step = 0; step < steps; ++step) {
    loss_of(model, step, 0, kRows).backward();
    reference->step();
  }
  const auto found = job.parameters();
  for (const auto& item : model->named_parameters()) {
    expect_close(
        found[item.key()], item.value().detach(), optimizer.tolerance,
        optimizer.name + ", " + item.key() + " after " + std::to_string(steps));
  }
}

// ---- tests ----

class OptimizerStates : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(OptimizerStates, T46GoOnOverAnotherNumberOfRanks) {
  const ScratchFolder scratch;
  const auto [before, after] = GetParam();
  expect_all_ok(run_ranks(before, [&](World world) {
    for (const auto& optimizer : optimizers()) {
      ShardedJob job(world, optimizer, 1);
      job.step(0);
      job.step(1);
      expect_parameters_after(2, optimizer, job);
      CheckpointSaver(world, scratch.path() + "/" + optimizer.name)
          .save(2, job.state());
    }
  }));
  expect_all_ok(run_ranks(after, [&](World world) {
    for (const auto& optimizer : optimizers()) {
      ShardedJob job(world, optimizer, 2);
      job.step(7);  // Other values and states than those that are loaded.
      load_checkpoint(
          world, scratch.path() + "/" + optimizer.name + "/step-2",
          job.state());
      job.step(2);
      job.step(3);
      expect_parameters_after(4, optimizer, job);
    }
  }));
}

// What was saved before the first update has no state of the optimizer.
TEST(OptimizerStatesBeforeUpdates, T46GoOnFromBeforeTheFirstUpdate) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(2, [&](World world) {
    for (const auto& optimizer : optimizers()) {
      ShardedJob fresh(world, optimizer, 1);
      const auto folder = scratch.path() + "/" + optimizer.name;
      CheckpointSaver(world, folder).save(0, fresh.state());
      const auto full = fresh.full_state();
      for (const bool from_folder : {true, false}) {
        ShardedJob job(world, optimizer, 2);
        job.step(7);  // State that has to go.
        if (from_folder) {
          load_checkpoint(world, folder + "/step-0", job.state());
        } else {
          scatter_full_state(world, full, job.state());
        }
        job.step(0);
        job.step(1);
        expect_parameters_after(2, optimizer, job);
      }
    }
  }));
}

torch::nn::Sequential with_frozen_layer(int seed) {
  auto model = two_layers(torch::kDouble, seed);
  for (const auto& parameter : model[0]->parameters()) {
    parameter.requires_grad_(false);
  }
  return model;
}

// Only Adagrad of LibTorch has state before the first update, of all parameters.
TEST(OptimizerStatesOfFrozenParameters, AreNeitherSavedNorMadeByAResume) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(2, [&](World world) {
    for (const auto& optimizer : optimizers()) {
      const auto folder = scratch.path() + "/" + optimizer.name;
      std::vector<std::string> names[2];
      for (int start = 0; start < 2; ++start) {
        ShardedJob job(world, optimizer, with_frozen_layer(start));
        if (start == 1) {
          load_checkpoint(world, folder + "/step-1", job.state());
        }
        job.step(start);
        CheckpointSaver(world, folder).save(start + 1, job.state());
        for (const auto& tensor :
             checkpoint_content(folder + "/step-" + std::to_string(start + 1))
                 .tensors) {
          const bool of_frozen = tensor.section != "model" &&
              tensor.name.find(".0.") != std::string::npos;
          EXPECT_FALSE(of_frozen && optimizer.name != "torch_adagrad")
              << optimizer.name << " " << tensor.name;
          names[start].push_back(tensor.section + " " + tensor.name);
        }
      }
      EXPECT_EQ(names[0], names[1]) << optimizer.name;
    }
  }));
}

// What is frozen now may have been trained before, and its state is kept.
TEST(OptimizerStatesOfFrozenParameters, AreLoadedIfTheCheckpointHasThem) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(2, [&](World world) {
    for (const auto& optimizer : optimizers()) {
      const auto folder = scratch.path() + "/" + optimizer.name;
      ShardedJob before(world, optimizer, 1);
      before.step(0);
      CheckpointSaver(world, folder).save(1, before.state());
      if (optimizer.name == "muon") {
        continue;  // It takes frozen matrices on one rank only.
      }
      ShardedJob job(world, optimizer, with_frozen_layer(2));
      load_checkpoint(world, folder + "/step-1", job.state());
      const auto expected = before.full_state();
      const auto found = job.full_state();
      EXPECT_EQ(found.size(), expected.size());
      for (const auto& [section, tensors] : expected) {
        for (const auto& [name, tensor] : tensors) {
          ASSERT_TRUE(found.at(section).contains(name)) << name;
          expect_close(found.at(section).at(name), tensor, 0.0, name);
        }
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    OptimizerStates,
    ::testing::Values(
        std::pair(1, 3), std::pair(2, 3), std::pair(3, 2), std::pair(4, 1)),
    [](const auto& given) {
      return std::to_string(given.param.first) + "to" +
          std::to_string(given.param.second);
    });

class OptimizerFullState : public ::testing::TestWithParam<int> {};

// By way of rank 0's memory, without a file.
TEST_P(OptimizerFullState, T45GoesOnFromTheMemoryOfRankZero) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& optimizer : optimizers()) {
      ShardedJob job(world, optimizer, 1);
      job.step(0);
      job.step(1);
      const auto full = gather_full_state(world, job.state());
      EXPECT_EQ(full.empty(), world.rank() != 0);
      ShardedJob other(world, optimizer, 2);
      other.step(7);
      scatter_full_state(world, full, other.state());
      const auto found = gather_full_state(world, other.state());
      for (const auto& [section, tensors] : full) {
        EXPECT_EQ(found.at(section).size(), tensors.size()) << optimizer.name;
        for (const auto& [name, tensor] : tensors) {
          expect_close(
              found.at(section).at(name), tensor, 0.0,
              optimizer.name + ", " + section + " " + name);
        }
      }
      other.step(2);
      other.step(3);
      expect_parameters_after(4, optimizer, other);
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    OptimizerFullState,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

// `found` is `expected`, with parameters of that dtype.
void expect_converted(
    const sherd::FullState& found,
    const sherd::FullState& expected,
    at::ScalarType dtype,
    const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (const auto& [section, tensors] : expected) {
    const auto& there = found.at(section);
    EXPECT_EQ(there.size(), tensors.size()) << what << ", " << section;
    for (const auto& [name, tensor] : tensors) {
      ASSERT_TRUE(there.contains(name)) << what << ", " << name;
      const auto& loaded = there.at(name);
      if (section == "model") {
        EXPECT_EQ(loaded.scalar_type(), dtype) << what << ", " << name;
      }
      expect_close(
          loaded, tensor.to(loaded.scalar_type()), 0.0,
          what + ", " + section + " " + name);
    }
  }
}

class Conversion : public ::testing::TestWithParam<int> {};

// What was saved in one dtype is loaded into another, parameters and state of
// optimizers alike, as LibTorch converts it.
TEST_P(Conversion, T46StateIsLoadedIntoOtherDtypes) {
  const ScratchFolder scratch;
  constexpr torch::ScalarType kDtypes[] = {
      torch::kFloat, torch::kDouble, torch::kBFloat16};
  std::vector<NamedOptimizer> tried;
  for (const auto& optimizer : optimizers()) {
    if (optimizer.name == "torch_adamw" || optimizer.name == "adamw" ||
        optimizer.name == "sgd" || optimizer.name == "muon") {
      tried.push_back(optimizer);
    }
  }
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    for (const auto& optimizer : tried) {
      for (const auto from : kDtypes) {
        ShardedJob saved(world, optimizer, 1, from);
        saved.step(0);
        saved.step(1);
        const auto folder =
            scratch.path() + "/" + optimizer.name + "-" + c10::toString(from);
        CheckpointSaver(world, folder).save(2, saved.state());
        const auto expected = saved.full_state();
        for (const auto to : kDtypes) {
          ShardedJob loaded(world, optimizer, 2, to);
          loaded.step(7);
          load_checkpoint(world, folder + "/step-2", loaded.state());
          const auto found = loaded.full_state();
          const auto what = optimizer.name + " from " + c10::toString(from) +
              " to " + c10::toString(to);
          expect_converted(found, expected, to, what);
          loaded.step(2);  // And goes on.
        }
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Conversion,
    ::testing::Values(1, 3),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
