// SPDX-License-Identifier: Apache-2.0
//
// What torch::jit::load() returns trains over ranks as the same computation in
// C++ does in one process, also once LibTorch has optimised the script.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

#include <sstream>
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/replicate.h>
#include <sherd/models/script_modules.h>
#include <sherd/optim/adamw.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::jit::Module;

constexpr int kScriptRanks = 2;
// More than the executor watches before it optimises.
constexpr int kScriptSteps = 5;
constexpr double kScriptTolerance = 1e-5;

void add_parameter(
    Module& script, const char* name, const std::vector<std::int64_t>& sizes) {
  script.register_parameter(
      name, (torch::randn(sizes) * 0.3).requires_grad_(),
      /*is_buffer=*/false);
}

Module script_block() {
  Module block("__torch__.Block");
  add_parameter(block, "norm", {6});
  add_parameter(block, "up", {12, 6});
  add_parameter(block, "bias", {12});
  add_parameter(block, "down", {6, 12});
  block.define(R"(
    def forward(self, x):
        h = torch.layer_norm(x, [6], self.norm)
        h = torch.gelu(torch.linear(h, self.up, self.bias))
        return x + torch.linear(h, self.down)
  )");
  return block;
}

std::string saved(const Module& script) {
  std::ostringstream file;
  script.save(file);
  return file.str();
}

Module loaded(const std::string& bytes) {
  std::istringstream file(bytes);
  return torch::jit::load(file);
}

// What torch.jit.script makes of two blocks in a ModuleList, a tied embedding
// and a scale; loaded from its file.
Module load_script(std::uint64_t seed = 3) {
  torch::manual_seed(seed);
  Module list("__torch__.torch.nn.modules.container.ModuleList");
  list.register_module("0", script_block());
  list.register_module("1", script_block());
  Module script("__torch__.Model");
  script.register_attribute("training", c10::BoolType::get(), true);
  script.register_module("layers", list);
  add_parameter(script, "embedding", {10, 6});
  script.register_parameter(
      "head", script.attr("embedding").toTensor(), /*is_buffer=*/false);
  script.register_buffer("scale", torch::full({1}, 2.0));
  script.register_parameter("frozen", torch::ones({6}), /*is_buffer=*/false);
  script.define(R"(
    def forward(self, ids):
        x = torch.embedding(self.embedding, ids)
        x = getattr(self.layers, "0").forward(x) * self.frozen
        x = getattr(self.layers, "1").forward(x)
        if self.training:
            x = x * self.scale
        return torch.linear(x, self.head)
  )");
  return loaded(saved(script));
}

// The same with operators called from C++.
torch::Tensor in_cpp(const torch::nn::Module& model, const torch::Tensor& ids) {
  const auto p = model.named_parameters();
  auto x = torch::embedding(p["embedding"], ids);
  for (const std::string block : {"layers.0.", "layers.1."}) {
    auto h = torch::layer_norm(x, {6}, p[block + "norm"]);
    h = torch::gelu(torch::linear(h, p[block + "up"], p[block + "bias"]));
    x = x + torch::linear(h, p[block + "down"]);
    x = block == "layers.0." ? x * p["frozen"] : x;
  }
  return torch::linear(x * model.named_buffers()["scale"], p["head"]);
}

torch::Tensor ids_of(int batch, int rank) {
  return (torch::arange(8) * 3 + batch * 5 + rank * 7)
      .remainder(10)
      .view({2, 4});
}

torch::Tensor loss_of(const torch::Tensor& logits) {
  return logits.to(torch::kFloat).square().mean();
}

torch::Tensor script_loss(Module& script, int batch, int rank) {
  return loss_of(script.forward({ids_of(batch, rank)}).toTensor());
}

torch::Tensor cpp_loss(const torch::nn::Module& model, int batch, int rank) {
  return loss_of(in_cpp(model, ids_of(batch, rank)));
}

MakeStep sgd_steps() {
  return steps_of<torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9));
}

// Trains the operators called from C++ in one process.
class ScriptReference {
 public:
  explicit ScriptReference(const World& world)
      : world_(world),
        modules_(models::script_modules(load_script())),
        leaves_(unique_parameters(*modules_)),
        step_(sgd_steps()(tensors_of(leaves_))) {}

  // Compares the loss of this rank with its own, and makes a step.
  void step(int batch, const torch::Tensor& loss, double tolerance) {
    const auto expected = reference_backward<torch::nn::Module>(
        *modules_, leaves_, cpp_loss, batch, world_);
    expect_close(
        loss.detach(), expected, tolerance,
        "loss of step " + std::to_string(batch));
    step_();
  }
  void step(int batch, const torch::Tensor& loss) {
    step(batch, loss, kScriptTolerance);
  }

  const torch::nn::Module& modules() const { return *modules_; }
  const std::vector<NamedLeaf>& leaves() const { return leaves_; }

 private:
  const World& world_;
  const std::shared_ptr<torch::nn::Module> modules_;
  const std::vector<NamedLeaf> leaves_;
  const std::function<void()> step_;
};

void expect_reference_values(
    const torch::nn::Module& found, const ScriptReference& reference) {
  const auto parameters = found.named_parameters();
  for (const auto& leaf : reference.leaves()) {
    expect_close(
        parameters[leaf.name].detach(), leaf.tensor.detach(), kScriptTolerance,
        leaf.name);
  }
}

TEST(TorchScript, TheTreeHasTheScriptsOwnTensorsAndNames) {
  const auto script = load_script();
  const auto modules = models::script_modules(script);
  std::vector<std::string> names;
  for (const auto& item : script.named_parameters()) {
    names.push_back(item.name);
    const auto found = modules->named_parameters()[item.name];
    EXPECT_TRUE(found.is_same(item.value)) << item.name;
    EXPECT_EQ(found.requires_grad(), item.name != "frozen");
  }
  EXPECT_EQ(modules->named_parameters().size(), names.size());
  EXPECT_THAT(modules->named_buffers().keys(), ElementsAre("scale"));
  EXPECT_TRUE(modules->named_parameters()["head"].is_same(
      modules->named_parameters()["embedding"]));
  EXPECT_EQ(modules->name(), "Model");
  EXPECT_EQ(modules->named_modules()["layers.1"]->name(), "Block");
}

std::vector<std::string> units_of(const units::Policy& policy) {
  std::vector<std::string> names;
  const auto modules = models::script_modules(load_script());
  for (const auto& unit :
       fsdp::build_units(*modules, 2, {.units = policy}).units) {
    names.push_back(unit.name);
  }
  return names;
}

TEST(TorchScript, PoliciesFindListsNamesSizesAndClasses) {
  const auto blocks =
      ElementsAre("(root)", "(root) (frozen)", "layers.0", "layers.1");
  EXPECT_THAT(units_of(units::children_of_lists()), blocks);
  EXPECT_THAT(units_of(units::by_name("layers.?")), blocks);
  EXPECT_THAT(units_of(units::by_size(100)), blocks);
  const auto is_block = [](const units::Candidate& candidate) {
    return candidate.module.name() == "Block";
  };
  EXPECT_THAT(units_of(is_block), blocks);
  EXPECT_THAT(
      units_of(units::optional(units::of_type<torch::nn::LinearImpl>())),
      ElementsAre("(root)", "(root) (frozen)"));
}

TEST(TorchScript, AFrozenScriptIsRefusedByItsClass) {
  auto script = load_script();
  script.eval();
  EXPECT_THAT(
      error_of([&] { models::script_modules(torch::jit::freeze(script)); }),
      AllOf(HasSubstr("module Model has no parameters"), HasSubstr("freeze")));
}

TEST(TorchScript, ShardedTrainsAsInOneProcess) {
  expect_all_ok(run_ranks(kScriptRanks, [](World world) {
    ScriptReference reference(world);
    auto script = load_script();
    const auto modules = models::script_modules(script);
    auto fsdp = fully_shard(*modules, world);
    EXPECT_EQ(fsdp.report().units, 4);
    const auto step = sgd_steps()(fsdp.parameters());
    for (int batch = 0; batch < kScriptSteps; ++batch) {
      const auto loss = script_loss(script, batch, world.rank());
      loss.backward();
      step();
      fsdp.publish();
      reference.step(batch, loss);
      script.eval();
      const torch::NoGradGuard no_grad;
      const auto ids = ids_of(batch, 0);
      expect_close(
          script.forward({ids}).toTensor(),
          in_cpp(reference.modules(), ids) / 2, kScriptTolerance, "evaluation");
      script.train();
    }
    expect_parameters(reference.leaves(), *modules, fsdp, kScriptTolerance);

    // What is saved inside the scope is whole, and plain LibTorch trains it.
    std::string bytes;
    {
      const auto whole = fsdp.summon_full_parameters({.read_only = true});
      bytes = saved(script);
    }
    fsdp.close();
    auto plain = loaded(bytes);
    expect_reference_values(*models::script_modules(plain), reference);
    const auto next = script_loss(plain, kScriptSteps, world.rank());
    next.backward();
    reference.step(kScriptSteps, next);
    EXPECT_TRUE(plain.attr("embedding").toTensor().grad().defined());
  }));
}

TEST(TorchScript, ACheckpointGoesOnInAnotherScript) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(kScriptRanks, [&](World world) {
    const auto train = [&](Module& script, int first, int last,
                           const std::string& run) {
      const auto folder = scratch.path() + "/" + run;
      const auto modules = models::script_modules(script);
      auto fsdp = fully_shard(*modules, world);
      AdamW adamw(fsdp.named_parameters(), {.learning_rate = 0.01});
      CheckpointState state;
      state.add(fsdp.named_parameters());
      state.add_buffers(*modules);
      state.add("optimizer", adamw, fsdp.named_parameters());
      if (first > 0) {
        load_newest_checkpoint(world, folder, state);
      }
      torch::Tensor loss;
      for (int batch = first; batch < last; ++batch) {
        loss = script_loss(script, batch, world.rank());
        loss.backward();
        adamw.step();
        adamw.zero_grad();
      }
      if (first == 0) {
        CheckpointSaver(world, folder).save(last, state);
      }
      return loss.detach();
    };
    auto whole = load_script();
    const auto expected = train(whole, 0, 4, "whole");
    auto begun = load_script();
    train(begun, 0, 2, "resumed");
    auto resumed = load_script(/*seed=*/4);
    resumed.attr("scale").toTensor().fill_(1.0);
    expect_close(
        train(resumed, 2, 4, "resumed"), expected, kScriptTolerance,
        "loss of step 3");
    EXPECT_EQ(resumed.attr("scale").toTensor().item<float>(), 2.0);
  }));
}

TEST(TorchScript, ReplicatedTrainsAsInOneProcess) {
  expect_all_ok(run_ranks(kScriptRanks, [](World world) {
    ScriptReference reference(world);
    auto script = load_script();
    const auto modules = models::script_modules(script);
    auto ddp = replicate(*modules, world);
    const auto step = sgd_steps()(tensors_of(unique_parameters(*modules)));
    for (int batch = 0; batch < kScriptSteps; ++batch) {
      const auto loss = script_loss(script, batch, world.rank());
      loss.backward();
      step();
      reference.step(batch, loss);
    }
    ddp.close();
    expect_reference_values(
        *models::script_modules(loaded(saved(script))), reference);
  }));
}

TEST(TorchScript, TrainsInBf16) {
  expect_all_ok(run_ranks(kScriptRanks, [](World world) {
    ScriptReference reference(world);
    auto script = load_script();
    const auto modules = models::script_modules(script);
    auto fsdp = fully_shard(
        *modules, world, {.mixed_precision = {.param_dtype = at::kBFloat16}});
    const auto step = sgd_steps()(fsdp.parameters());
    for (int batch = 0; batch < kScriptSteps; ++batch) {
      const auto loss = script_loss(script, batch, world.rank());
      loss.backward();
      step();
      fsdp.publish();
      reference.step(batch, loss, 0.02);
    }
  }));
}

// An input in fp32 would be refused in backward (docs/guide/torchscript.md).
TEST(TorchScript, TakesInputsOfParamDtypeInBf16) {
  expect_all_ok(run_ranks(kScriptRanks, [](World world) {
    torch::manual_seed(3);
    auto plain = script_block();
    auto script = loaded(saved(plain));
    const auto modules = models::script_modules(script);
    auto fsdp = fully_shard(
        *modules, world, {.mixed_precision = {.param_dtype = at::kBFloat16}});
    const auto x = torch::ones({4, 6}).cumsum(1) / 6;
    const auto expected = loss_of(plain.forward({x}).toTensor()).detach();
    for (int step = 0; step < kScriptSteps; ++step) {
      const auto loss =
          loss_of(script.forward({x.to(at::kBFloat16)}).toTensor());
      loss.backward();
      fsdp.publish();
      expect_close(loss.detach(), expected, 0.02, "loss");
    }
  }));
}

}  // namespace
}  // namespace sherd::test
