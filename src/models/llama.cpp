// SPDX-License-Identifier: Apache-2.0
// Shapes: B rows, T positions, C width, H heads, K heads of keys and values,
// D = C / H, I intermediate, V vocabulary.
#include <sherd/models/llama.h>

#include <optional>
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include "models/config_checks.h"
#include "models/precision.h"
#include "models/rotary.h"

namespace sherd::models {
namespace {

constexpr double kWeightDeviation = 0.02;
constexpr std::int64_t kIntermediateMultiple = 256;

// Checks the configuration and fills in the values that 0 stands for.
LlamaConfig checked(LlamaConfig config) {
  check_sizes(
      {.layers = config.layers,
       .width = config.width,
       .heads = config.heads,
       .sequence = config.sequence,
       .vocabulary = config.vocabulary});
  if (config.kv_heads == 0) {
    config.kv_heads = config.heads;
  }
  if (config.intermediate == 0) {
    config.intermediate = llama_intermediate(config.width);
  }
  expect(
      config.kv_heads >= 1, "at least 1 head of keys and values", "kv_heads",
      config.kv_heads);
  expect_divides(
      "heads that kv_heads divide",
      {"heads", config.heads, "kv_heads", config.kv_heads});
  expect(
      config.width / config.heads % 2 == 0, "an even width of each head",
      "width / heads", config.width / config.heads);
  expect(
      config.intermediate >= 1, "a positive intermediate width", "intermediate",
      config.intermediate);
  expect(
      config.rope_theta > 0.0, "a positive rotary base", "rope_theta",
      config.rope_theta);
  expect(
      config.norm_epsilon > 0.0, "a positive norm epsilon", "norm_epsilon",
      config.norm_epsilon);
  return config;
}

at::Tensor uninitialised(at::IntArrayRef sizes, at::Device device) {
  return at::empty(sizes, at::TensorOptions(at::kFloat).device(device));
}

}  // namespace

std::int64_t llama_intermediate(std::int64_t width) {
  const auto two_thirds = 8 * width / 3;
  return (two_thirds + kIntermediateMultiple - 1) / kIntermediateMultiple *
      kIntermediateMultiple;
}

LlamaLinearImpl::LlamaLinearImpl(
    std::int64_t in, std::int64_t out, at::Device device)
    : weight(register_parameter("weight", uninitialised({out, in}, device))) {}

at::Tensor LlamaLinearImpl::forward(const at::Tensor& x) {
  return at::linear(x, weight);
}

LlamaEmbeddingImpl::LlamaEmbeddingImpl(const LlamaConfig& config)
    : weight(register_parameter(
          "weight",
          uninitialised({config.vocabulary, config.width}, config.device))) {}

at::Tensor LlamaEmbeddingImpl::forward(const at::Tensor& ids) {
  return at::embedding(weight, ids);
}

LlamaRmsNormImpl::LlamaRmsNormImpl(const LlamaConfig& config)
    : weight(register_parameter(
          "weight", uninitialised({config.width}, config.device))),
      epsilon_(config.norm_epsilon) {}

at::Tensor LlamaRmsNormImpl::forward(const at::Tensor& x) {
  const auto wide = at_least_fp32(x);
  const auto scale =
      (wide.pow(2).mean(-1, /*keepdim=*/true) + epsilon_).rsqrt();
  return weight * (wide * scale).to(x.scalar_type());
}

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config)
    : head_width_(config.width / config.heads) {
  const auto kv_width = config.kv_heads * head_width_;
  const auto projection = [&](const char* name, std::int64_t in,
                              std::int64_t out) {
    return register_module(name, LlamaLinear(in, out, config.device));
  };
  q_proj_ = projection("q_proj", config.width, config.width);
  k_proj_ = projection("k_proj", config.width, kv_width);
  v_proj_ = projection("v_proj", config.width, kv_width);
  o_proj_ = projection("o_proj", config.width, config.width);
}

at::Tensor LlamaAttentionImpl::forward(
    const at::Tensor& x, const RotaryTable& rotary) {
  const auto rows = x.size(0);
  const auto positions = x.size(1);
  const auto to_heads = [&](const at::Tensor& x_BTC) {
    return x_BTC.view({rows, positions, -1, head_width_}).transpose(1, 2);
  };
  const auto q_BHTD = rotate(to_heads(q_proj_->forward(x)), rotary);
  const auto k_BKTD = rotate(to_heads(k_proj_->forward(x)), rotary);
  const auto v_BKTD = to_heads(v_proj_->forward(x));
  const auto mixed_BHTD = at::scaled_dot_product_attention(
      q_BHTD, k_BKTD, v_BKTD, /*attn_mask=*/std::nullopt, /*dropout_p=*/0.0,
      /*is_causal=*/true, /*scale=*/std::nullopt,
      /*enable_gqa=*/q_BHTD.size(1) != k_BKTD.size(1));
  return o_proj_->forward(
      mixed_BHTD.transpose(1, 2).reshape({rows, positions, -1}));
}

LlamaMlpImpl::LlamaMlpImpl(const LlamaConfig& config)
    : gate_proj_(register_module(
          "gate_proj",
          LlamaLinear(config.width, config.intermediate, config.device))),
      up_proj_(register_module(
          "up_proj",
          LlamaLinear(config.width, config.intermediate, config.device))),
      down_proj_(register_module(
          "down_proj",
          LlamaLinear(config.intermediate, config.width, config.device))) {}

at::Tensor LlamaMlpImpl::forward(const at::Tensor& x) {
  return down_proj_->forward(
      at::silu(gate_proj_->forward(x)) * up_proj_->forward(x));
}

LlamaDecoderLayerImpl::LlamaDecoderLayerImpl(const LlamaConfig& config)
    : self_attn_(register_module("self_attn", LlamaAttention(config))),
      mlp_(register_module("mlp", LlamaMlp(config))),
      input_layernorm_(
          register_module("input_layernorm", LlamaRmsNorm(config))),
      post_attention_layernorm_(
          register_module("post_attention_layernorm", LlamaRmsNorm(config))) {}

at::Tensor LlamaDecoderLayerImpl::forward(
    const at::Tensor& x, const RotaryTable& rotary) {
  const auto attended =
      x + self_attn_->forward(input_layernorm_->forward(x), rotary);
  return attended + mlp_->forward(post_attention_layernorm_->forward(attended));
}

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config)
    : embed_tokens(register_module("embed_tokens", LlamaEmbedding(config))),
      head_width_(config.width / config.heads),
      rope_theta_(config.rope_theta),
      layers_(register_module("layers", torch::nn::ModuleList())),
      norm_(register_module("norm", LlamaRmsNorm(config))) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    layers_->push_back(LlamaDecoderLayer(config));
  }
}

at::Tensor LlamaModelImpl::forward(
    const at::Tensor& ids, const LayerRunner& run_layer) {
  // Once for all layers, and not a buffer: `to(dtype)` must not round it.
  const auto rotary = rotary_table(
      {.positions = ids.size(1),
       .head_width = head_width_,
       .theta = rope_theta_},
      ids.device());
  auto x_BTC = embed_tokens->forward(ids);
  for (const auto& layer : *layers_) {
    x_BTC = run_layer(
        *layer,
        [layer, rotary](const at::Tensor& x) {
          return layer->as<LlamaDecoderLayerImpl>()->forward(x, rotary);
        },
        x_BTC);
  }
  return norm_->forward(x_BTC);
}

LlamaImpl::LlamaImpl(const LlamaConfig& config)
    : LanguageModel(config.seed),
      config_(checked(config)),
      model_(register_module("model", LlamaModel(config_))) {
  if (!config_.tied_head) {
    lm_head_ = register_module(
        "lm_head",
        LlamaLinear(config_.width, config_.vocabulary, config_.device));
  }
  if (!config_.device.is_meta()) {
    reset_parameters();
  }
}

at::Tensor LlamaImpl::forward(const at::Tensor& ids) {
  check_ids(ids, config_.sequence);
  const auto x_BTC = model_->forward(ids, run_layer());
  return lm_head_ ? lm_head_->forward(x_BTC)
                  : at::linear(x_BTC, model_->embed_tokens->weight);
}

double LlamaImpl::initial_deviation(const std::string& /*name*/) const {
  return kWeightDeviation;
}

}  // namespace sherd::models
