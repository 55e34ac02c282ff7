// SPDX-License-Identifier: Apache-2.0
// Shapes: B rows, T positions, C width, H heads, D = C / H, V vocabulary.
#include <sherd/models/gpt.h>

#include <cmath>
#include <string>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include "models/attention.h"
#include "models/config_checks.h"

namespace sherd::models {
namespace {

constexpr double kNormEpsilon = 1e-5;
constexpr double kInitialDeviation = 0.02;

GptConfig checked(const GptConfig& config) {
  check_sizes(config);
  expect(
      config.width % config.heads == 0, "a width that heads divide", "width",
      config.width, "heads", config.heads);
  expect(
      config.dropout >= 0.0 && config.dropout < 1.0, "dropout in [0, 1)",
      "dropout", config.dropout);
  return config;
}

// LibTorch makes its layers on the CPU, from where this one is moved to the device.
torch::nn::LayerNorm norm(const GptConfig& config) {
  torch::nn::LayerNorm layer(
      torch::nn::LayerNormOptions({config.width}).eps(kNormEpsilon));
  for (const auto& parameter : layer->parameters(/*recurse=*/false)) {
    if (config.device != parameter.device()) {
      // set_data() refuses another kind of device.
      parameter.unsafeGetTensorImpl()->shallow_copy_from(
          at::empty_like(parameter.detach(), config.device).getIntrusivePtr());
    }
  }
  return layer;
}

Embedding embedding(std::int64_t rows, const GptConfig& config) {
  return Embedding(rows, config.width, config.device);
}

at::Tensor drop(const at::Tensor& x, double p, bool training) {
  return p > 0.0 && training ? at::dropout(x, p, true) : x;
}

}  // namespace

ProjectionImpl::ProjectionImpl(
    std::int64_t in, std::int64_t out, at::Device device)
    : weight(register_parameter("weight", at::empty({in, out}, device))),
      bias(register_parameter("bias", at::empty({out}, device))) {}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  auto shape = x.sizes().vec();
  shape.back() = weight.size(1);
  return at::addmm(bias, x.reshape({-1, weight.size(0)}), weight).view(shape);
}

AttentionImpl::AttentionImpl(const GptConfig& config)
    : heads_(config.heads),
      dropout_(config.dropout),
      c_attn_(register_module(
          "c_attn", Projection(config.width, 3 * config.width, config.device))),
      c_proj_(register_module(
          "c_proj", Projection(config.width, config.width, config.device))) {}

at::Tensor AttentionImpl::forward(const at::Tensor& x, LayerKeyValues* cache) {
  const auto rows = x.size(0);
  const auto positions = x.size(1);
  const auto width = x.size(2);
  const auto qkv_BTC = c_attn_->forward(x).split(width, /*dim=*/-1);
  const auto to_heads = [&](const at::Tensor& x_BTC) {
    return x_BTC.view({rows, positions, heads_, width / heads_})
        .transpose(1, 2);
  };
  const auto inputs = with_cache(
      {.queries = to_heads(qkv_BTC[0]),
       .keys = to_heads(qkv_BTC[1]),
       .values = to_heads(qkv_BTC[2])},
      cache);
  const auto mixed_BHTD =
      attend(inputs, {.dropout = is_training() ? dropout_ : 0.0});
  const auto mixed_BTC =
      mixed_BHTD.transpose(1, 2).reshape({rows, positions, width});
  return drop(c_proj_->forward(mixed_BTC), dropout_, is_training());
}

MlpImpl::MlpImpl(const GptConfig& config)
    : c_fc_(register_module(
          "c_fc", Projection(config.width, 4 * config.width, config.device))),
      c_proj_(register_module(
          "c_proj",
          Projection(4 * config.width, config.width, config.device))) {}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  return c_proj_->forward(at::gelu(c_fc_->forward(x), "tanh"));
}

BlockImpl::BlockImpl(const GptConfig& config)
    : dropout_(config.dropout),
      ln_1_(register_module("ln_1", norm(config))),
      attn_(register_module("attn", Attention(config))),
      ln_2_(register_module("ln_2", norm(config))),
      mlp_(register_module("mlp", Mlp(config))) {}

at::Tensor BlockImpl::forward(const at::Tensor& x, LayerKeyValues* cache) {
  const auto attended = x + attn_->forward(ln_1_->forward(x), cache);
  return attended +
      drop(mlp_->forward(ln_2_->forward(attended)), dropout_, is_training());
}

GptImpl::GptImpl(const GptConfig& config)
    : LanguageModel(config.seed),
      config_(checked(config)),
      wte_(register_module("wte", embedding(config.vocabulary, config))),
      wpe_(register_module("wpe", embedding(config.sequence, config))),
      h_(register_module("h", torch::nn::ModuleList())),
      ln_f_(register_module("ln_f", norm(config))) {
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    h_->push_back(Block(config_));
  }
  if (!config_.tied_head) {
    lm_head_ =
        register_module("lm_head", embedding(config_.vocabulary, config_));
  }
  if (!config_.device.is_meta()) {
    reset_parameters();
  }
}

at::Tensor GptImpl::transform(const at::Tensor& ids, KeyValueCache* cache) {
  const auto first = cache != nullptr ? cache->front().positions() : 0;
  const auto positions = at::arange(first, first + ids.size(1), ids.options());
  auto x_BTC = drop(
      wte_->forward(ids) + wpe_->forward(positions), config_.dropout,
      is_training());
  for (std::size_t layer = 0; layer < h_->size(); ++layer) {
    const auto block = h_->ptr<BlockImpl>(layer);
    auto* cached = cache != nullptr ? &(*cache)[layer] : nullptr;
    x_BTC = run_layer()(
        *block,
        [block, cached](const at::Tensor& x) {
          return block->forward(x, cached);
        },
        x_BTC);
  }
  return ln_f_->forward(x_BTC);
}

at::Tensor GptImpl::head(const at::Tensor& x) {
  return at::linear(x, (lm_head_ ? lm_head_ : wte_)->weight);
}

at::Tensor GptImpl::forward(const at::Tensor& ids) {
  check_ids(ids, config_.sequence);
  return head(transform(ids, nullptr));
}

at::Tensor GptImpl::decode(const at::Tensor& ids, KeyValueCache& cache) {
  check_decoding(ids, cache, config_.layers);
  const at::NoGradGuard no_grad;
  return head(transform(ids, &cache).select(1, -1));
}

// The values of GPT-2: every matrix is normal(0, 0.02), and the two that write into the residual
// stream are scaled down by the square root of the number of such writes.
double GptImpl::initial_deviation(const std::string& name) const {
  return name.ends_with("c_proj.weight")
      ? kInitialDeviation / std::sqrt(2.0 * static_cast<double>(config_.layers))
      : kInitialDeviation;
}

}  // namespace sherd::models
