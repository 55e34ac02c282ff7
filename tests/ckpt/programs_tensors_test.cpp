// SPDX-License-Identifier: Apache-2.0
//
// What programs add to a state by themselves, and what plain programs have made.
#include <gmock/gmock.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/replicate.h>
#include <sherd/fsdp/fully_shard.h>
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"

namespace sherd::test {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ProgramsTensors : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Worlds, ProgramsTensors, ::testing::Values(1, 2));

CheckpointState state_of(torch::nn::Linear& model) {
  CheckpointState state;
  for (const auto& item : model->named_parameters()) {
    state.add(
        "model",
        {.name = item.key(),
         .shape = item.value().sizes().vec(),
         .elements = item.value()});
  }
  return state;
}

// The parameters themselves instead of named_parameters(): a load would write into the whole unit,
// and a send would read memory that is not there.
TEST(ProgramsTensors, ParametersOfAShardedModuleAreRefusedByName) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(2, [&](World world) {
    torch::manual_seed(3);
    torch::nn::Linear model(3, 4);
    auto plain = state_of(model);
    CheckpointSaver(world, scratch.path()).save(1, plain);
    auto fsdp =
        fully_shard(*model, world, {.exchange = ExchangeKind::kCollective});
    const auto input = torch::ones({2, 3});
    auto state = state_of(model);
    for (const bool whole : {false, true}) {
      if (whole) {
        const torch::NoGradGuard no_grad;
        (void)model->forward(input);
      }
      EXPECT_THAT(
          error_of([&] {
            load_checkpoint(world, scratch.path() + "/step-1", state);
          }),
          HasSubstr("would write parameter weight"));
      EXPECT_THAT(
          error_of([&] { world.broadcast(model->parameters()); }),
          HasSubstr("would write parameter weight"));
    }
    fsdp.publish();  // Whole units are dropped.
    EXPECT_THAT(
        error_of([&] { (void)gather_full_state(world, state); }),
        AllOf(HasSubstr("sharded now"), HasSubstr("weight")));
    const auto loss = model->forward(input).sum();
    loss.backward();
    world.barrier();
    fsdp.close();
  }));
}

TEST(ProgramsTensors, ParametersOfAReplicaAreLoadedAndBroadcast) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(2, [&](World world) {
    torch::nn::Linear model(3, 4);
    auto ddp = replicate(*model, world);
    auto state = state_of(model);
    const auto saved = model->weight.detach().clone();
    CheckpointSaver(world, scratch.path()).save(1, state);
    const auto fill = [&] {
      const torch::NoGradGuard no_grad;
      model->weight.fill_(world.rank() + 5.0);
    };
    fill();
    load_checkpoint(world, scratch.path() + "/step-1", state);
    EXPECT_TRUE(at::equal(model->weight.detach(), saved));
    fill();
    world.broadcast(model->parameters());
    EXPECT_EQ(model->weight.min().item<float>(), 5.0F);
  }));
}

// torch::save() writes a tied parameter under each of its names.
struct TiedHeadImpl : torch::nn::Module {
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(5, 3));
  torch::Tensor head = register_parameter("head", table->weight);
  void untie() {
    head = head.detach().clone().requires_grad_();
    parameters_["head"] = head;
    const torch::NoGradGuard no_grad;
    head.add_(1.0);
  }
};
TORCH_MODULE(TiedHead);

TEST_P(ProgramsTensors, ATiedParameterMayHaveAllItsNamesInFilesAndStates) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    const auto file =
        scratch.path() + "/" + std::to_string(world.rank()) + ".pt";
    torch::manual_seed(5);
    TiedHead trained;
    torch::save(trained, file);
    const auto untied = file + "-untied";
    TiedHead other;
    other->untie();
    torch::save(other, untied);
    // The same as checkpoints and as whole states of rank 0.
    import_checkpoint({file}, file + "-folder");
    import_checkpoint({untied}, untied + "-folder");
    const auto whole_of = [&](TiedHead& plain) {
      return sherd::FullState{
          {"model",
           {{"head", plain->head.detach()},
            {"table.weight", plain->table->weight.detach()}}}};
    };
    for (const bool sharded : {true, false}) {
      torch::manual_seed(6);
      TiedHead model;
      const auto expect_loaded = [&](const NamedParameters& parameters) {
        CheckpointState state;
        state.add(parameters);
        state.add_buffers(*model);
        const auto zeros = torch::zeros({5, 3});
        const auto expect_all = [&](const torch::Tensor& values) {
          auto full = gather_full_state(world, state);
          if (world.rank() == 0) {
            EXPECT_TRUE(at::equal(full["model"]["head"], values));
          }
        };
        const auto expect_other_values = [&](const auto& load) {
          scatter_full_state(world, {{"model", {{"head", zeros}}}}, state);
          EXPECT_THAT(
              error_of(load),
              HasSubstr("expected table.weight to be the same as head"));
          expect_all(zeros);
        };
        expect_other_values([&] { load_tensor_files(world, {untied}, state); });
        load_tensor_files(world, {file}, state);
        expect_all(trained->head.detach());
        expect_other_values(
            [&] { load_checkpoint(world, untied + "-folder/step-0", state); });
        EXPECT_THAT(
            load_checkpoint(
                world, untied + "-folder/step-0", state, {.strict = false})
                .unexpected,
            ElementsAre("model table.weight"));
        load_checkpoint(world, file + "-folder/step-0", state);
        expect_all(trained->head.detach());
        expect_other_values(
            [&] { scatter_full_state(world, whole_of(other), state); });
        scatter_full_state(world, whole_of(trained), state);
        expect_all(trained->head.detach());
      };
      if (sharded) {
        expect_loaded(fully_shard(*model, world).named_parameters());
      } else {
        expect_loaded(replicate(*model, world).named_parameters());
      }
    }
  }));
}

TEST_P(ProgramsTensors, ATiedParameterHasAllItsNamesInArchives) {
  const ScratchFolder scratch;
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    torch::manual_seed(5);
    TiedHead model;
    const auto values = model->head.detach().clone();
    auto fsdp = fully_shard(*model, world);
    CheckpointState state;
    state.add(fsdp.named_parameters());
    state.add_buffers(*model);
    CheckpointSaver(world, scratch.path()).save(1, state);
    if (world.rank() == 0) {
      const auto archives = merge_checkpoint(
          scratch.path() + "/step-1", scratch.path() + "/archives",
          {.archives = true});
      TiedHead plain;
      torch::load(plain, archives.front());
      EXPECT_TRUE(at::equal(plain->head, values));
      EXPECT_TRUE(at::equal(plain->table->weight, values));
    }
  }));
}

}  // namespace
}  // namespace sherd::test
