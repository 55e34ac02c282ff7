// SPDX-License-Identifier: Apache-2.0
#include "generate/load_model.h"

#include <map>
#include <string>
#include <vector>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <sherd/base/error.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/optim/named_parameters.h>
#include <torch/nn/module.h>
#include "train/hugging_face.h"
#include "train/model.h"

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

// Returns the checkpoint to try instead if the run has removed this one; empty once the weights are
// there.
std::string load_or_find_newer(
    const World& world,
    const std::string& folder,
    const ModelSource& source,
    CheckpointState& state) {
  try {
    check(
        load_checkpoint(world, folder, state, {.strict = false}),
        source.section);
    return "";
  } catch (const Error& error) {  // The same on every rank.
    if (error.code() != ErrorCode::kUnavailable) {
      throw;
    }
    const auto next = replacement_of(folder, source.from).value_or("");
    const auto agreed = world.all_gather_texts(next).front();
    if (agreed.empty()) {
      throw;
    }
    return agreed;
  }
}

}  // namespace

void load_weights(
    const World& world,
    const ModelSource& source,
    const NamedParameters& parameters) {
  CheckpointState state;
  state.add(source.section, parameters);
  if (source.files.empty()) {
    // Rank 0's answer is used: while the run goes on, others may see a newer one.
    auto folder = world.all_gather_texts(source.weights).front();
    while (!folder.empty()) {
      folder = load_or_find_newer(world, folder, source, state);
    }
  } else {
    load_tensor_files(
        world, source.files, state, {.rename = [&](const std::string& name) {
          return name_from_hugging_face(source.config, name);
        }});
  }
}

void expect_tensors_of(
    const ModelSource& source, const CheckpointContent& content) {
  std::map<std::string, std::vector<std::int64_t>> found;
  for (const auto& tensor : content.tensors) {
    if (tensor.section == kModelWeights) {
      found[tensor.name] = tensor.shape;
    }
  }
  const auto model = make_empty_model(source, at::kFloat);
  for (const auto& item : model->named_parameters()) {
    const auto expected = item.value().sizes();
    const auto tensor = found.extract(item.key());
    const auto shape =
        tensor.empty() ? at::IntArrayRef() : at::IntArrayRef(tensor.mapped());
    if (tensor.empty() || shape != expected) {
      throw Error(
          source.from + ": expected " + item.key() + " of shape " +
          c10::str(expected) + ", as its config.json says, found " +
          (tensor.empty() ? "no such tensor" : c10::str(shape)));
    }
  }
  if (!found.empty()) {
    throw Error(
        source.from + ": expected the tensors of the model in its " +
        "config.json, found " + found.begin()->first + ", too");
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
