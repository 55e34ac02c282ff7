// SPDX-License-Identifier: Apache-2.0
//
// Llama (Touvron et al. 2023, arXiv 2302.13971 and 2307.09288) as a plain
// torch::nn::Module: rotary positions, RMSNorm before each branch, SwiGLU,
// grouped-query attention, no biases. Parameter names, layouts and arithmetic
// are those of Hugging Face's LlamaForCausalLM, so that its checkpoints load as
// they are. Nothing here knows about ranks or sharding. Thread rule: that of a
// torch module, one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <ATen/core/Tensor.h>
#include <sherd/models/language_model.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

namespace sherd::models {

struct RotaryTable;

struct LlamaConfig {
  std::int64_t layers = 8;
  std::int64_t width = 256;
  // Must divide width, into an even number for rotary positions.
  std::int64_t heads = 8;
  // Heads of keys and values, each shared by heads / kv_heads of the queries;
  // must divide heads. 0: as heads.
  std::int64_t kv_heads = 0;
  // Width inside the MLP. 0: Llama's, see llama_intermediate().
  std::int64_t intermediate = 0;
  std::int64_t sequence = 128;    // Longest input.
  std::int64_t vocabulary = 256;  // 256: bytes.
  double rope_theta = 10000.0;    // Base of the rotary wavelengths.
  double norm_epsilon = 1e-6;
  // True shares the embedding and has no "lm_head.weight".
  bool tied_head = false;
  // Initial values depend on this and on each parameter's name only, not on
  // the order of construction nor on LibTorch's global generator.
  std::uint64_t seed = 0;
  // at::kMeta: parameters have shapes but neither memory nor values. Whoever
  // gives them memory calls reset_parameter() for the values.
  at::Device device = at::kCPU;
};

// Two thirds of 4 * width, rounded up to a multiple of 256: 11008 for 4096.
std::int64_t llama_intermediate(std::int64_t width);

// x W^T with W as [out, in].
class LlamaLinearImpl : public torch::nn::Module {
 public:
  LlamaLinearImpl(std::int64_t in, std::int64_t out, at::Device device);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
};
TORCH_MODULE(LlamaLinear);

class LlamaEmbeddingImpl : public torch::nn::Module {
 public:
  explicit LlamaEmbeddingImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& ids);

  at::Tensor weight;  // [vocabulary, width]
};
TORCH_MODULE(LlamaEmbedding);

// x / sqrt(mean(x^2) + epsilon), in fp32 or more, rounded to the dtype of x and
// then scaled.
class LlamaRmsNormImpl : public torch::nn::Module {
 public:
  explicit LlamaRmsNormImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;  // [width]

 private:
  double epsilon_;
};
TORCH_MODULE(LlamaRmsNorm);

class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaConfig& config);
  // Each position sees itself and those before it. [B, T, C] to the same.
  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary);

 private:
  std::int64_t head_width_;
  LlamaLinear q_proj_{nullptr};
  LlamaLinear k_proj_{nullptr};
  LlamaLinear v_proj_{nullptr};
  LlamaLinear o_proj_{nullptr};
};
TORCH_MODULE(LlamaAttention);

class LlamaMlpImpl : public torch::nn::Module {
 public:
  explicit LlamaMlpImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  LlamaLinear gate_proj_{nullptr};
  LlamaLinear up_proj_{nullptr};
  LlamaLinear down_proj_{nullptr};
};
TORCH_MODULE(LlamaMlp);

// One layer: x + attention(norm(x)), then x + mlp(norm(x)).
class LlamaDecoderLayerImpl : public torch::nn::Module {
 public:
  explicit LlamaDecoderLayerImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x, const RotaryTable& rotary);

 private:
  LlamaAttention self_attn_{nullptr};
  LlamaMlp mlp_{nullptr};
  LlamaRmsNorm input_layernorm_{nullptr};
  LlamaRmsNorm post_attention_layernorm_{nullptr};
};
TORCH_MODULE(LlamaDecoderLayer);

// All but the head: token ids [B, T] to [B, T, C].
class LlamaModelImpl : public torch::nn::Module {
 public:
  explicit LlamaModelImpl(const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& ids, const LayerRunner& run_layer);

  LlamaEmbedding embed_tokens{nullptr};

 private:
  std::int64_t head_width_;
  double rope_theta_;
  torch::nn::ModuleList layers_{nullptr};
  LlamaRmsNorm norm_{nullptr};
};
TORCH_MODULE(LlamaModel);

class LlamaImpl : public LanguageModel {
 public:
  // Throws sherd::Error on a configuration that makes no model: a size below
  // 1, a width that heads do not divide into even parts, heads that kv_heads
  // do not divide, an epsilon or theta that is not positive.
  explicit LlamaImpl(const LlamaConfig& config);

  at::Tensor forward(const at::Tensor& ids) override;
  std::int64_t positions_max() const override { return config_.sequence; }

  // As given, with the values that 0 stood for.
  const LlamaConfig& config() const { return config_; }

 private:
  double initial_deviation(const std::string& name) const override;

  LlamaConfig config_;
  LlamaModel model_{nullptr};
  LlamaLinear lm_head_{nullptr};  // Null when tied.
};
TORCH_MODULE(Llama);

}  // namespace sherd::models
