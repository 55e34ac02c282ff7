// SPDX-License-Identifier: Apache-2.0
//
// Llama (Touvron et al. 2023, arXiv 2302.13971 and 2307.09288) as a plain
// torch::nn::Module: rotary positions, RMSNorm before each branch, SwiGLU,
// grouped-query attention, no biases. Options make it a Mistral (arXiv
// 2310.06825), a Qwen2 (arXiv 2407.10671) or a Qwen3 (arXiv 2505.09388).
// Parameter names, layouts and arithmetic are those of Hugging Face's
// LlamaForCausalLM and its likes, so that their checkpoints load as they are.
// Nothing here knows about ranks or sharding. Thread rule: that of a torch
// module, one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <ATen/core/Tensor.h>
#include <sherd/models/language_model.h>
#include <sherd/models/lora.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

namespace sherd::models {

struct RotaryTable;

// How the wavelengths of rotary positions are stretched, so that a model can
// read more positions than it was first trained with. The fields are those of
// Hugging Face's rope_scaling.
enum class RopeKind {
  kDefault,  // Not at all.
  kLinear,   // All by `factor` (arXiv 2306.15595).
  kLlama3,   // Long ones by `factor`, short ones not at all (Llama 3.1).
  kYarn,     // The same by another rule, and larger scores (arXiv 2309.00071).
};
struct RopeScaling {
  RopeKind kind = RopeKind::kDefault;
  double factor = 1.0;  // At least 1.
  // For kLlama3: waves of which original_positions hold fewer than
  // low_freq_factor are long, those with more than high_freq_factor short.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_positions = 8192;
  // For kYarn: waves that turn fewer than beta_slow times in original_positions
  // are long, those that turn more than beta_fast times short. Cosines and sines
  // are multiplied by attention_factor; 0: 0.1 ln(factor) + 1.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0.0;
  bool operator==(const RopeScaling&) const = default;
};

struct LlamaConfig {
  std::int64_t layers = 8;
  std::int64_t width = 256;
  std::int64_t heads = 8;
  // Width of each head, even for rotary positions. 0: width / heads, which must
  // then be a whole number.
  std::int64_t head_width = 0;
  // Heads of keys and values, each shared by heads / kv_heads of the queries;
  // must divide heads. 0: as heads.
  std::int64_t kv_heads = 0;
  // Width inside the MLP. 0: Llama's, see llama_intermediate().
  std::int64_t intermediate = 0;
  std::int64_t sequence = 128;    // Longest input.
  std::int64_t vocabulary = 256;  // 256: bytes.
  double rope_theta = 10000.0;    // Base of the rotary wavelengths.
  RopeScaling rope_scaling = {};
  double norm_epsilon = 1e-6;
  // Biases of the projections to queries, keys and values, as Qwen2 has them.
  bool qkv_bias = false;
  // RMSNorm over each head of queries and of keys, as Qwen3 has it.
  bool qk_norm = false;
  // Each position sees itself and so many less one before it, as in Mistral.
  // 0: all before it.
  std::int64_t sliding_window = 0;
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

enum class LinearBias { kNone, kLearned };

// x W^T + b with W as [out, in], and what an adapter adds, if it has one.
class LlamaLinearImpl : public torch::nn::Module {
 public:
  LlamaLinearImpl(
      std::int64_t in,
      std::int64_t out,
      at::Device device,
      LinearBias has_bias = LinearBias::kNone);
  at::Tensor forward(const at::Tensor& x);

  // Adds `scale` (x A^T) B^T with modules lora_A, A [rank, in], and lora_B, B [out, rank], whose values
  // the caller sets. REQUIRES: it has none yet.
  void add_lora(std::int64_t rank, double scale);
  bool has_lora() const { return lora_a_ != nullptr; }

  at::Tensor weight;
  at::Tensor bias;  // Undefined where there is none.

 private:
  std::shared_ptr<LlamaLinearImpl> lora_a_;
  std::shared_ptr<LlamaLinearImpl> lora_b_;
  double lora_scale_ = 0.0;
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
  // Over the last dimension, of this width.
  LlamaRmsNormImpl(std::int64_t width, const LlamaConfig& config);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;  // [width]

 private:
  double epsilon_;
};
TORCH_MODULE(LlamaRmsNorm);

class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaConfig& config);
  // Each position sees itself and those before it, also those in `cache` unless
  // it is null. [B, T, C] to the same.
  at::Tensor forward(
      const at::Tensor& x,
      const RotaryTable& rotary,
      LayerKeyValues* cache = nullptr);

 private:
  std::int64_t head_width_;
  std::int64_t sliding_window_;
  LlamaLinear q_proj_{nullptr};
  LlamaLinear k_proj_{nullptr};
  LlamaLinear v_proj_{nullptr};
  LlamaLinear o_proj_{nullptr};
  LlamaRmsNorm q_norm_{nullptr};  // Null without qk_norm.
  LlamaRmsNorm k_norm_{nullptr};
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
  at::Tensor forward(
      const at::Tensor& x,
      const RotaryTable& rotary,
      LayerKeyValues* cache = nullptr);

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
  at::Tensor forward(
      const at::Tensor& ids,
      const LayerRunner& run_layer,
      KeyValueCache* cache = nullptr);

  LlamaEmbedding embed_tokens{nullptr};

 private:
  LlamaConfig config_;
  torch::nn::ModuleList layers_{nullptr};
  LlamaRmsNorm norm_{nullptr};
};
TORCH_MODULE(LlamaModel);

class LlamaImpl : public LanguageModel {
 public:
  // Throws sherd::Error on a configuration that makes no model: a size below
  // 1, a width that heads do not divide into even parts, heads that kv_heads
  // do not divide, an epsilon or theta that is not positive, a stretching
  // factor below 1.
  explicit LlamaImpl(const LlamaConfig& config);

  at::Tensor forward(const at::Tensor& ids) override;
  at::Tensor decode(const at::Tensor& ids, KeyValueCache& cache) override;
  std::int64_t positions_max() const override { return config_.sequence; }

  // Gives projections adapters and freezes everything else. An adapter changes nothing at first: A is
  // drawn with a deviation of 1 / rank, as PEFT's "gaussian" does, and B is zero. Before fully_shard or
  // replicate, once. They get the dtype of the projection. Throws sherd::Error, changing nothing, for a
  // rank below 1, for no targets or one that names no projection, and a model that has adapters.
  void add_lora(const LoraConfig& lora);

  // As given, with the values that 0 stood for.
  const LlamaConfig& config() const { return config_; }

 private:
  double initial_deviation(const std::string& name) const override;
  at::Tensor head(const at::Tensor& x);
  std::int64_t layers() const override { return config_.layers; }

  LlamaConfig config_;
  LlamaModel model_{nullptr};
  LlamaLinear lm_head_{nullptr};  // Null when tied.
  std::int64_t lora_rank_ = 0;    // 0: no adapters.
};
TORCH_MODULE(Llama);

}  // namespace sherd::models
