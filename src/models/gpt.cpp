// SPDX-License-Identifier: Apache-2.0
// Shapes: B rows, T positions, C width, H heads, D = C / H, V vocabulary.
#include <sherd/models/gpt.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <sherd/base/error.h>

namespace sherd::models {
namespace {

constexpr double kNormEpsilon = 1e-5;
constexpr double kInitialDeviation = 0.02;

template <typename T>
void expect(bool holds, const char* expected, const char* name, T found) {
  if (!holds) {
    std::ostringstream message;
    message << "[models] expected " << expected << ", found " << name << " "
            << found;
    throw Error(message.str());
  }
}

GptConfig checked(const GptConfig& config) {
  expect(config.layers >= 1, "at least 1 layer", "layers", config.layers);
  expect(config.width >= 1, "a positive width", "width", config.width);
  expect(config.heads >= 1, "at least 1 head", "heads", config.heads);
  expect(
      config.sequence >= 1, "a positive sequence length", "sequence",
      config.sequence);
  expect(
      config.vocabulary >= 1, "a positive vocabulary", "vocabulary",
      config.vocabulary);
  expect(
      config.dropout >= 0.0 && config.dropout < 1.0, "dropout in [0, 1)",
      "dropout", config.dropout);
  if (config.width % config.heads != 0) {
    std::ostringstream message;
    message << "[models] expected a width that heads divide, found width "
            << config.width << " and heads " << config.heads;
    throw Error(message.str());
  }
  return config;
}

torch::nn::LayerNorm norm(std::int64_t width) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({width}).eps(kNormEpsilon));
}

at::Tensor drop(const at::Tensor& x, double p, bool training) {
  return p > 0.0 && training ? at::dropout(x, p, true) : x;
}

// FNV-1a over the name, then SplitMix64's finaliser: close seeds and names
// give unrelated generators.
std::uint64_t stream_of(const std::string& name, std::uint64_t seed) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ (seed * 0x9e3779b97f4a7c15ULL);
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27U)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31U);
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() &&
      text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// GPT-2's: every matrix normal(0, 0.02), the two that write into the residual
// stream scaled down by the number of such writes; norms 1 and biases 0.
void initialise(torch::nn::Module& model, const GptConfig& config) {
  const at::NoGradGuard no_grad;
  const double residual_deviation = kInitialDeviation /
      std::sqrt(2.0 * static_cast<double>(config.layers));
  for (auto& item : model.named_parameters()) {
    at::Tensor& parameter = item.value();
    if (parameter.dim() == 1) {
      parameter.fill_(ends_with(item.key(), ".weight") ? 1.0 : 0.0);
      continue;
    }
    parameter.normal_(
        0.0,
        ends_with(item.key(), "c_proj.weight") ? residual_deviation
                                               : kInitialDeviation,
        at::make_generator<at::CPUGeneratorImpl>(
            stream_of(item.key(), config.seed)));
  }
}

// Puts a module's training mode back on scope exit, also by an exception.
class EvaluationScope {
 public:
  explicit EvaluationScope(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()) {
    module_.eval();
  }
  ~EvaluationScope() { module_.train(was_training_); }
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

}  // namespace

ProjectionImpl::ProjectionImpl(std::int64_t in, std::int64_t out)
    : weight(register_parameter("weight", at::empty({in, out}))),
      bias(register_parameter("bias", at::empty({out}))) {}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  auto shape = x.sizes().vec();
  shape.back() = weight.size(1);
  return at::addmm(bias, x.reshape({-1, weight.size(0)}), weight).view(shape);
}

AttentionImpl::AttentionImpl(const GptConfig& config)
    : heads_(config.heads),
      dropout_(config.dropout),
      c_attn_(register_module(
          "c_attn", Projection(config.width, 3 * config.width))),
      c_proj_(
          register_module("c_proj", Projection(config.width, config.width))) {}

at::Tensor AttentionImpl::forward(const at::Tensor& x) {
  const auto rows = x.size(0);
  const auto positions = x.size(1);
  const auto width = x.size(2);
  const auto qkv_BTC = c_attn_->forward(x).split(width, /*dim=*/-1);
  const auto to_heads = [&](const at::Tensor& x_BTC) {
    return x_BTC.view({rows, positions, heads_, width / heads_})
        .transpose(1, 2);
  };
  const auto mixed_BHTD = at::scaled_dot_product_attention(
      to_heads(qkv_BTC[0]), to_heads(qkv_BTC[1]), to_heads(qkv_BTC[2]),
      /*attn_mask=*/std::nullopt, is_training() ? dropout_ : 0.0,
      /*is_causal=*/true);
  const auto mixed_BTC =
      mixed_BHTD.transpose(1, 2).reshape({rows, positions, width});
  return drop(c_proj_->forward(mixed_BTC), dropout_, is_training());
}

MlpImpl::MlpImpl(const GptConfig& config)
    : c_fc_(register_module(
          "c_fc", Projection(config.width, 4 * config.width))),
      c_proj_(register_module(
          "c_proj", Projection(4 * config.width, config.width))) {}

at::Tensor MlpImpl::forward(const at::Tensor& x) {
  return c_proj_->forward(at::gelu(c_fc_->forward(x), "tanh"));
}

BlockImpl::BlockImpl(const GptConfig& config)
    : dropout_(config.dropout),
      ln_1_(register_module("ln_1", norm(config.width))),
      attn_(register_module("attn", Attention(config))),
      ln_2_(register_module("ln_2", norm(config.width))),
      mlp_(register_module("mlp", Mlp(config))) {}

at::Tensor BlockImpl::forward(const at::Tensor& x) {
  const auto attended = x + attn_->forward(ln_1_->forward(x));
  return attended +
      drop(mlp_->forward(ln_2_->forward(attended)), dropout_, is_training());
}

GptImpl::GptImpl(const GptConfig& config)
    : config_(checked(config)),
      wte_(register_module(
          "wte", torch::nn::Embedding(config.vocabulary, config.width))),
      wpe_(register_module(
          "wpe", torch::nn::Embedding(config.sequence, config.width))),
      h_(register_module("h", torch::nn::ModuleList())),
      ln_f_(register_module("ln_f", norm(config.width))) {
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    h_->push_back(Block(config_));
  }
  if (!config_.tied_head) {
    lm_head_ = register_module(
        "lm_head",
        torch::nn::Linear(
            torch::nn::LinearOptions(config_.width, config_.vocabulary)
                .bias(false)));
  }
  initialise(*this, config_);
}

at::Tensor GptImpl::forward(const at::Tensor& ids) {
  expect(
      ids.dim() == 2, "token ids of two dimensions, [rows, positions]",
      "dimensions", ids.dim());
  expect(
      ids.size(1) <= config_.sequence, "no more positions than the model has",
      "positions", ids.size(1));
  const auto positions = at::arange(ids.size(1), ids.options());
  auto x_BTC = drop(
      wte_->forward(ids) + wpe_->forward(positions), config_.dropout,
      is_training());
  for (const auto& block : *h_) {
    x_BTC = block->as<BlockImpl>()->forward(x_BTC);
  }
  x_BTC = ln_f_->forward(x_BTC);
  return lm_head_ ? lm_head_->forward(x_BTC)
                  : at::linear(x_BTC, wte_->weight);
}

at::Tensor GptImpl::loss(const at::Tensor& inputs, const at::Tensor& targets) {
  const auto logits_BTV = forward(inputs);
  return at::cross_entropy_loss(
      logits_BTV.view({-1, logits_BTV.size(-1)}), targets.reshape({-1}));
}

std::vector<std::int64_t> GptImpl::generate(
    const std::vector<std::int64_t>& prompt, const GenerateOptions& options) {
  expect(!prompt.empty(), "a prompt of at least 1 token", "tokens", 0);
  expect(
      options.temperature >= 0.0, "a temperature of at least 0", "temperature",
      options.temperature);
  const at::NoGradGuard no_grad;
  const EvaluationScope evaluation(*this);
  const auto generator =
      at::make_generator<at::CPUGeneratorImpl>(options.seed);
  const auto device = wte_->weight.device();
  auto ids = prompt;
  for (std::int64_t made = 0; made < options.tokens; ++made) {
    const auto seen = std::min<std::int64_t>(
        config_.sequence, static_cast<std::int64_t>(ids.size()));
    const std::vector<std::int64_t> window(ids.end() - seen, ids.end());
    const auto logits_V =
        forward(at::tensor(window, at::kLong).view({1, seen}).to(device))
            .select(1, seen - 1)
            .select(0, 0)
            .to(at::kCPU, at::kFloat);
    const auto next = options.temperature == 0.0
        ? logits_V.argmax()
        : at::multinomial(
              at::softmax(logits_V / options.temperature, -1), 1, false,
              generator);
    ids.push_back(next.item<std::int64_t>());
  }
  return ids;
}

}  // namespace sherd::models
