// SPDX-License-Identifier: Apache-2.0
#include "generate/load_model.h"

#include <ATen/ops/empty.h>
#include <sherd/base/error.h>
#include <sherd/ckpt/checkpoint.h>
#include <torch/nn/module.h>
#include "train/hugging_face.h"
#include "train/model.h"

namespace sherd::tools {
namespace {

// On the meta device: its values come from files.
std::shared_ptr<models::LanguageModel> make_empty_model(
    const ModelSource& source, at::ScalarType dtype) {
  TrainConfig config = source.config;
  config.strategy = "full_shard";
  config.recompute_activations = false;
  auto model = make_model(config, source.vocabulary);
  model->to(dtype);
  model->eval();
  return model;
}

// Gives the parameters memory, and names it in the state.
void add_whole(models::LanguageModel& model, CheckpointState& state) {
  for (const auto& item : model.named_parameters()) {
    auto parameter = item.value();
    // set_data() refuses another kind of device.
    parameter.unsafeGetTensorImpl()->shallow_copy_from(
        at::empty(parameter.sizes(), parameter.scalar_type())
            .getIntrusivePtr());
    state.add(
        "model",
        {.name = item.key(),
         .shape = parameter.sizes().vec(),
         .elements = parameter.detach()});
  }
}

void read_weights(
    const World& world, const ModelSource& source, CheckpointState& state) {
  if (!source.files.empty()) {
    load_tensor_files(
        world, source.files, state, {.rename = [&](const std::string& name) {
          return name_from_hugging_face(source.config, name);
        }});
    return;
  }
  // Rank 0's answer: while the run goes on, others may see a newer one.
  const auto folder = world.all_gather_texts(source.weights).front();
  // Without what the optimizer remembers.
  const auto report = load_checkpoint(world, folder, state, {.strict = false});
  if (!report.missing.empty()) {
    throw Error(
        folder + ": expected all tensors of its model, found no " +
        report.missing.front());
  }
}

}  // namespace

LoadedModel load_model(
    const World& world, const ModelSource& source, at::ScalarType dtype) {
  LoadedModel loaded{.model = make_empty_model(source, dtype)};
  CheckpointState state;
  if (world.size() == 1) {
    add_whole(*loaded.model, state);
  } else {
    FullyShardOptions options;
    options.initialise = [](const std::string& /*name*/,
                            const at::Tensor& value) { value.zero_(); };
    options.compare_initial_values = false;
    loaded.fsdp.emplace(fully_shard(*loaded.model, world, options));
    state.add(loaded.fsdp->named_parameters());
  }
  read_weights(world, source, state);
  return loaded;
}

}  // namespace sherd::tools
