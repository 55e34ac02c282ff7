// SPDX-License-Identifier: Apache-2.0
#include "train/model.h"

#include <sherd/fsdp/activation_checkpointing.h>
#include <sherd/models/gpt.h>
#include <sherd/models/llama.h>

namespace sherd::tools {
namespace {

std::shared_ptr<models::LanguageModel> make_plain_model(
    const TrainConfig& config, std::int64_t vocabulary) {
  const auto seed = static_cast<std::uint64_t>(config.seed);
  // Shards get their values one parameter at a time.
  const at::Device device = config.strategy == "ddp" ? at::kCPU : at::kMeta;
  if (config.model == "llama") {
    return std::make_shared<models::LlamaImpl>(models::LlamaConfig{
        .layers = config.layers,
        .width = config.width,
        .heads = config.heads,
        .kv_heads = config.kv_heads,
        .intermediate = config.intermediate,
        .sequence = config.seq,
        .vocabulary = vocabulary,
        .seed = seed,
        .device = device});
  }
  return std::make_shared<models::GptImpl>(models::GptConfig{
      .layers = config.layers,
      .width = config.width,
      .heads = config.heads,
      .sequence = config.seq,
      .vocabulary = vocabulary,
      .dropout = config.dropout,
      .seed = seed,
      .device = device});
}

}  // namespace

std::shared_ptr<models::LanguageModel> make_model(
    const TrainConfig& config, std::int64_t vocabulary) {
  auto model = make_plain_model(config, vocabulary);
  if (config.recompute_activations) {
    model->run_layers_with(ActivationCheckpointing(*model));
  }
  return model;
}

std::int64_t multiplied_parameters(const models::LanguageModel& model) {
  const auto parameters = model.named_parameters();
  const bool tied = !parameters.contains("lm_head.weight");
  std::int64_t count = 0;
  for (const auto& parameter : parameters) {
    const auto& name = parameter.key();
    const bool tokens =
        name == "wte.weight" || name == "model.embed_tokens.weight";
    const bool looked_up = name == "wpe.weight" || (tokens && !tied);
    count += looked_up ? 0 : parameter.value().numel();
  }
  return count;
}

}  // namespace sherd::tools
