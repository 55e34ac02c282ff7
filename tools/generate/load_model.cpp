// SPDX-License-Identifier: Apache-2.0
#include "generate/load_model.h"

#include <string>
#include <ATen/ops/empty.h>
#include <sherd/base/error.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/optim/named_parameters.h>
#include <torch/nn/module.h>
#include "train/hugging_face.h"
#include "train/model.h"
#include "train/weight_average.h"

namespace sherd::tools {
namespace {

// On the meta device, since its values come from files.
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

// Gives the parameters memory.
NamedParameters allocated(models::LanguageModel& model) {
  NamedParameters parameters;
  for (const auto& item : model.named_parameters()) {
    auto parameter = item.value();
    // set_data() refuses a device of another type.
    parameter.unsafeGetTensorImpl()->shallow_copy_from(
        at::empty(parameter.sizes(), parameter.scalar_type())
            .getIntrusivePtr());
    parameters.items.push_back({.name = item.key(), .slice = parameter});
  }
  return parameters;
}

// A report names "SECTION TENSOR"; tensors of an optimizer may remain unread.
void check(const LoadReport& report, const std::string& section) {
  if (!report.missing.empty()) {
    throw Error(
        report.folder + ": expected all weights of its model, found no " +
        report.missing.front());
  }
  for (const auto& name : report.unexpected) {
    if (name.starts_with(section + " ")) {
      throw Error(
          report.folder + ": expected the weights of its model, found " + name +
          ", too");
    }
  }
}

}  // namespace

void load_weights(
    const World& world,
    const ModelSource& source,
    const NamedParameters& parameters) {
  CheckpointState state;
  add_slices(state, source.section, parameters);
  if (source.files.empty()) {
    // Rank 0's answer is used: while the run goes on, others may see a newer one.
    const auto folder = world.all_gather_texts(source.weights).front();
    check(
        load_checkpoint(world, folder, state, {.strict = false}),
        source.section);
  } else {
    load_tensor_files(
        world, source.files, state, {.rename = [&](const std::string& name) {
          return name_from_hugging_face(source.config, name);
        }});
  }
  if (parameters.publish) {
    parameters.publish();
  }
}

LoadedModel load_model(
    const World& world, const ModelSource& source, at::ScalarType dtype) {
  LoadedModel loaded{.model = make_empty_model(source, dtype)};
  if (world.size() == 1) {
    load_weights(world, source, allocated(*loaded.model));
    return loaded;
  }
  FullyShardOptions options;
  options.initialise = [](const std::string& /*name*/,
                          const at::Tensor& value) { value.zero_(); };
  options.compare_initial_values = false;
  loaded.fsdp.emplace(fully_shard(*loaded.model, world, options));
  load_weights(world, source, loaded.fsdp->named_parameters());
  return loaded;
}

}  // namespace sherd::tools
