// SPDX-License-Identifier: Apache-2.0
#include "train/model.h"

#include <string>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sherd/base/error.h>
#include <sherd/fsdp/activation_checkpointing.h>
#include <sherd/models/gpt.h>
#include <sherd/models/llama.h>
#include <torch/cuda.h>

namespace sherd::tools {
namespace {

models::RopeScaling rope_scaling_of(const TrainConfig& config) {
  const auto text = parse_rope_scaling(config.rope_scaling);
  const auto kind = text.kind == "linear" ? models::RopeKind::kLinear
      : text.kind == "llama3"             ? models::RopeKind::kLlama3
      : text.kind == "yarn"               ? models::RopeKind::kYarn
                                          : models::RopeKind::kDefault;
  return {
      .kind = kind,
      .factor = text.factor,
      .low_freq_factor = text.low_freq_factor,
      .high_freq_factor = text.high_freq_factor,
      .original_positions = text.original_positions,
      .beta_fast = text.beta_fast,
      .beta_slow = text.beta_slow,
      .attention_factor = text.attention_factor};
}

std::shared_ptr<models::LanguageModel> make_plain_model(
    const TrainConfig& config, std::int64_t vocabulary) {
  const auto seed = static_cast<std::uint64_t>(config.seed);
  // Shards get their values one parameter at a time.
  const at::Device device = config.strategy == "ddp" ? at::kCPU : at::kMeta;
  if (config.model != "gpt") {
    return std::make_shared<models::LlamaImpl>(models::LlamaConfig{
        .layers = config.layers,
        .width = config.width,
        .heads = config.heads,
        .head_width = config.head_width,
        .kv_heads = config.kv_heads,
        .intermediate = config.intermediate,
        .sequence = config.seq,
        .vocabulary = vocabulary,
        .rope_theta = config.rope_theta,
        .rope_scaling = rope_scaling_of(config),
        .norm_epsilon = config.norm_epsilon,
        .qkv_bias = config.model == "qwen2",
        .qk_norm = config.model == "qwen3",
        .sliding_window = config.sliding_window,
        .tied_head = config.tied_head,
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

at::Device device_of(const TrainConfig& config, const World& world) {
  if (config.device == "cpu") {
    return at::kCPU;
  }
  const auto have = static_cast<int>(torch::cuda::device_count());
  if (world.local_rank() >= have) {
    throw Error(
        "--device: expected cpu, or a LibTorch for CUDA and a GPU for each "
        "rank "
        "of the host, found cuda for local rank " +
        std::to_string(world.local_rank()) + " and " + std::to_string(have) +
        " GPUs");
  }
  const at::Device device(
      at::kCUDA, static_cast<c10::DeviceIndex>(world.local_rank()));
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

std::shared_ptr<models::LanguageModel> make_model(
    const TrainConfig& config, std::int64_t vocabulary, at::Device device) {
  auto model = make_plain_model(config, vocabulary);
  if (config.strategy == "ddp") {
    model->to(device);
  }
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
