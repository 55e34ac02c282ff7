// SPDX-License-Identifier: Apache-2.0
// Shapes: B rows, T positions, C width, H heads, K heads of keys and values,
// D width of a head, I intermediate, V vocabulary.
#include <sherd/models/llama.h>

#include <memory>
#include <utility>
#include <vector>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include "models/attention.h"
#include "models/config_checks.h"
#include "models/precision.h"
#include "models/rotary.h"

namespace sherd::models {
namespace {

constexpr double kWeightDeviation = 0.02;
constexpr std::int64_t kIntermediateMultiple = 256;

void check_scaling(const RopeScaling& scaling) {
  if (scaling.kind == RopeKind::kDefault) {
    return;
  }
  expect(
      scaling.factor >= 1.0, "a stretching factor of at least 1",
      "rope_scaling.factor", scaling.factor);
  if (scaling.kind == RopeKind::kLlama3) {
    expect(
        scaling.low_freq_factor > 0.0 &&
            scaling.low_freq_factor < scaling.high_freq_factor,
        "a low_freq_factor between 0 and high_freq_factor", "low_freq_factor",
        scaling.low_freq_factor);
  }
  if (scaling.kind == RopeKind::kYarn) {
    expect(
        scaling.beta_slow > 0.0 && scaling.beta_slow < scaling.beta_fast,
        "a beta_slow between 0 and beta_fast", "beta_slow", scaling.beta_slow);
    expect(
        scaling.attention_factor >= 0.0, "an attention factor of at least 0",
        "attention_factor", scaling.attention_factor);
  }
  expect(
      scaling.original_positions >= 1, "at least 1 original position",
      "original_positions", scaling.original_positions);
}

// Checks the configuration and replaces zeros by the values they stand for.
LlamaConfig checked(LlamaConfig config) {
  check_sizes(config);
  if (config.head_width == 0) {
    expect(
        config.width % config.heads == 0, "a width that heads divide", "width",
        config.width, "heads", config.heads);
    config.head_width = config.width / config.heads;
  }
  expect(
      config.head_width >= 2 && config.head_width % 2 == 0,
      "an even width of each head", "head_width", config.head_width);
  if (config.kv_heads == 0) {
    config.kv_heads = config.heads;
  }
  if (config.intermediate == 0) {
    config.intermediate = llama_intermediate(config.width);
  }
  expect(
      config.kv_heads >= 1, "at least 1 head of keys and values", "kv_heads",
      config.kv_heads);
  expect(
      config.heads % config.kv_heads == 0, "heads that kv_heads divide",
      "heads", config.heads, "kv_heads", config.kv_heads);
  expect(
      config.intermediate >= 1, "a positive intermediate width", "intermediate",
      config.intermediate);
  expect(
      config.rope_theta > 0.0, "a positive rotary base", "rope_theta",
      config.rope_theta);
  expect(
      config.norm_epsilon > 0.0, "a positive norm epsilon", "norm_epsilon",
      config.norm_epsilon);
  expect(
      config.sliding_window >= 0, "a sliding window of at least 0",
      "sliding_window", config.sliding_window);
  check_scaling(config.rope_scaling);
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
    std::int64_t in, std::int64_t out, at::Device device, LinearBias has_bias)
    : weight(register_parameter("weight", uninitialised({out, in}, device))) {
  if (has_bias == LinearBias::kLearned) {
    bias = register_parameter("bias", uninitialised({out}, device));
  }
}

at::Tensor LlamaLinearImpl::forward(const at::Tensor& x) {
  const auto y =
      bias.defined() ? at::linear(x, weight, bias) : at::linear(x, weight);
  return has_lora() ? y + lora_scale_ * lora_b_->forward(lora_a_->forward(x))
                    : y;
}

void LlamaLinearImpl::add_lora(std::int64_t rank, double scale) {
  lora_scale_ = scale;
  const auto adapter = [&](const char* name, std::int64_t in,
                           std::int64_t out) {
    auto linear = std::make_shared<LlamaLinearImpl>(in, out, weight.device());
    linear->to(weight.scalar_type());
    return register_module(name, std::move(linear));
  };
  lora_a_ = adapter("lora_A", weight.size(1), rank);
  lora_b_ = adapter("lora_B", rank, weight.size(0));
}

LlamaRmsNormImpl::LlamaRmsNormImpl(
    std::int64_t width, const LlamaConfig& config)
    : weight(
          register_parameter("weight", uninitialised({width}, config.device))),
      epsilon_(config.norm_epsilon) {}

at::Tensor LlamaRmsNormImpl::forward(const at::Tensor& x) {
  const auto wide = at_least_fp32(x);
  const auto scale =
      (wide.pow(2).mean(-1, /*keepdim=*/true) + epsilon_).rsqrt();
  return weight * (wide * scale).to(x.scalar_type());
}

LlamaAttentionImpl::LlamaAttentionImpl(const LlamaConfig& config)
    : head_width_(config.head_width), sliding_window_(config.sliding_window) {
  const auto q_width = config.heads * head_width_;
  const auto kv_width = config.kv_heads * head_width_;
  const auto bias = config.qkv_bias ? LinearBias::kLearned : LinearBias::kNone;
  const auto input = [&](const char* name, std::int64_t out) {
    return register_module(
        name, LlamaLinear(config.width, out, config.device, bias));
  };
  q_proj_ = input("q_proj", q_width);
  k_proj_ = input("k_proj", kv_width);
  v_proj_ = input("v_proj", kv_width);
  o_proj_ = register_module(
      "o_proj", LlamaLinear(q_width, config.width, config.device));
  if (config.qk_norm) {
    q_norm_ = register_module("q_norm", LlamaRmsNorm(head_width_, config));
    k_norm_ = register_module("k_norm", LlamaRmsNorm(head_width_, config));
  }
}

at::Tensor LlamaAttentionImpl::forward(
    const at::Tensor& x, const RotaryTable& rotary, LayerKeyValues* cache) {
  const auto rows = x.size(0);
  const auto positions = x.size(1);
  const auto split = [&](const at::Tensor& x_BTC) {
    return x_BTC.view({rows, positions, -1, head_width_});
  };
  const auto turned = [&](const at::Tensor& x_BTC, LlamaRmsNorm& norm) {
    const auto x_BTHD = norm ? norm->forward(split(x_BTC)) : split(x_BTC);
    return rotate(x_BTHD.transpose(1, 2), rotary);
  };
  const auto inputs = with_cache(
      {.queries = turned(q_proj_->forward(x), q_norm_),
       .keys = turned(k_proj_->forward(x), k_norm_),
       .values = split(v_proj_->forward(x)).transpose(1, 2)},
      cache);
  const auto mixed_BHTD = attend(inputs, {.window = sliding_window_});
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
      input_layernorm_(register_module(
          "input_layernorm", LlamaRmsNorm(config.width, config))),
      post_attention_layernorm_(register_module(
          "post_attention_layernorm", LlamaRmsNorm(config.width, config))) {}

at::Tensor LlamaDecoderLayerImpl::forward(
    const at::Tensor& x, const RotaryTable& rotary, LayerKeyValues* cache) {
  const auto attended =
      x + self_attn_->forward(input_layernorm_->forward(x), rotary, cache);
  return attended + mlp_->forward(post_attention_layernorm_->forward(attended));
}

LlamaModelImpl::LlamaModelImpl(const LlamaConfig& config)
    : embed_tokens(register_module(
          "embed_tokens",
          Embedding(
              config.vocabulary,
              config.width,
              at::TensorOptions(at::kFloat).device(config.device)))),
      config_(config),
      layers_(register_module("layers", torch::nn::ModuleList())),
      norm_(register_module("norm", LlamaRmsNorm(config.width, config))) {
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    layers_->push_back(LlamaDecoderLayer(config));
  }
}

at::Tensor LlamaModelImpl::forward(
    const at::Tensor& ids, const LayerRunner& run_layer, KeyValueCache* cache) {
  // Made once for all layers. Not a buffer, because `to(dtype)` must not round it.
  const auto rotary = rotary_table(
      {.first = cache != nullptr ? cache->front().positions() : 0,
       .positions = ids.size(1),
       .head_width = config_.head_width,
       .theta = config_.rope_theta,
       .scaling = config_.rope_scaling},
      ids.device());
  auto x_BTC = embed_tokens->forward(ids);
  for (std::size_t i = 0; i < layers_->size(); ++i) {
    const auto layer = layers_->ptr<LlamaDecoderLayerImpl>(i);
    auto* cached = cache != nullptr ? &(*cache)[i] : nullptr;
    x_BTC = run_layer(
        *layer,
        [layer, rotary, cached](const at::Tensor& x) {
          return layer->forward(x, rotary, cached);
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

at::Tensor LlamaImpl::head(const at::Tensor& x) {
  return lm_head_ ? lm_head_->forward(x)
                  : at::linear(x, model_->embed_tokens->weight);
}

at::Tensor LlamaImpl::forward(const at::Tensor& ids) {
  check_ids(ids, config_.sequence);
  return head(model_->forward(ids, run_layer()));
}

at::Tensor LlamaImpl::decode(const at::Tensor& ids, KeyValueCache& cache) {
  check_decoding(ids, cache, config_.layers);
  const at::NoGradGuard no_grad;
  return head(model_->forward(ids, run_layer(), &cache).select(1, -1));
}

void LlamaImpl::add_lora(const LoraConfig& lora) {
  expect(lora_rank_ == 0, "a model without adapters", "a rank", lora_rank_);
  expect(lora.rank >= 1, "at least rank 1 of adapters", "rank", lora.rank);
  expect(
      !lora.target_modules.empty(),
      "target_modules that name at least one projection", "target_modules",
      "[]");
  std::vector<LlamaLinearImpl*> targets;
  for (const auto& target : lora.target_modules) {
    const auto before = targets.size();
    for (const auto& item : named_modules()) {
      if (item.key() == target || item.key().ends_with("." + target)) {
        if (auto* linear = item.value()->as<LlamaLinearImpl>()) {
          targets.push_back(linear);
        }
      }
    }
    expect(
        targets.size() > before,
        "target_modules that name projections, as "
        "q_proj",
        "target", target);
  }
  for (auto& parameter : parameters()) {
    parameter.set_requires_grad(false);
  }
  lora_rank_ = lora.rank;
  for (auto* linear : targets) {
    if (!linear->has_lora()) {  // Two targets may name it.
      linear->add_lora(lora.rank, lora.alpha / static_cast<double>(lora.rank));
    }
  }
  for (const auto& item : named_parameters()) {
    if (is_lora_parameter(item.key()) && !item.value().is_meta()) {
      reset_parameter(item.key(), item.value());
    }
  }
}

double LlamaImpl::initial_deviation(const std::string& name) const {
  if (is_lora_parameter(name)) {
    return name.ends_with(".lora_A.weight")
        ? 1.0 / static_cast<double>(lora_rank_)
        : 0.0;
  }
  return kWeightDeviation;
}

}  // namespace sherd::models
