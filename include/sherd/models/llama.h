// SPDX-License-Identifier: Apache-2.0
//
// Llama (Touvron et al. 2023, arXiv 2302.13971 and 2307.09288) as a plain torch::nn::Module: rotary
// positions, RMSNorm before each branch, SwiGLU, grouped-query attention, no biases. With options
// it is a Mistral (arXiv 2310.06825), a Qwen2 (arXiv 2407.10671) or a Qwen3 (arXiv 2505.09388).
// Parameter names, layouts and arithmetic are those of Hugging Face's LlamaForCausalLM and its
// relatives, so their checkpoints load as they are. Nothing here knows about ranks or sharding.
// Thread rule: that of a torch module, one thread at a time.
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

// How the wavelengths of rotary positions are stretched, so that a model can read more positions
// than it was first trained with. The fields are those of Hugging Face's rope_scaling.
enum class RopeKind {
  kDefault,  // Not at all.
  kLinear,   // All of them by `factor` (arXiv 2306.15595).
  kLlama3,   // Long ones by `factor`, short ones not at all (Llama 3.1).
  kYarn,     // Similar, by another rule, with larger scores (arXiv 2309.00071).
};
struct RopeScaling {
  RopeKind kind = RopeKind::kDefault;
  double factor = 1.0;  // At least 1.
  // For kLlama3. A wave is long if fewer than low_freq_factor of it fit into original_positions,
  // and short if more than high_freq_factor do.
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  std::int64_t original_positions = 8192;
  // For kYarn. A wave is long if it turns fewer than beta_slow times in original_positions, and
  // short if it turns more than beta_fast times. Cosines and sines are multiplied by
  // attention_factor; 0 stands for 0.1 ln(factor) + 1.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0.0;
  bool operator==(const RopeScaling&) const = default;
};

struct LlamaConfig {
  std::int64_t layers = 8;
  std::int64_t width = 256;
  std::int64_t heads = 8;
  // The width of each head; even, because of rotary positions. 0: width / heads, which must then be
  // a whole number.
  std::int64_t head_width = 0;
  // The number of heads of keys and values, each shared by heads / kv_heads heads of queries. Must
  // divide heads. 0: as many as heads.
  std::int64_t kv_heads = 0;
  // The width inside the MLP. 0: Llama's, see llama_intermediate().
  std::int64_t intermediate = 0;
  std::int64_t sequence = 128;    // The longest input.
  std::int64_t vocabulary = 256;  // 256: bytes.
  double rope_theta = 10000.0;    // Base of the rotary wavelengths.
  RopeScaling rope_scaling = {};
  double norm_epsilon = 1e-6;
  // Biases of the projections to queries, keys and values, as Qwen2 has them.
  bool qkv_bias = false;
  // RMSNorm over each head of queries and of keys, as Qwen3 has it.
  bool qk_norm = false;
  // Each position attends to itself and to sliding_window - 1 positions before it, as in Mistral.
  // 0: to all before it.
  std::int64_t sliding_window = 0;
  // True: the head shares the embedding's weight, and there is no "lm_head.weight".
  bool tied_head = false;
  // Initial values depend only on this and on each parameter's name, not on the order of
  // construction or on LibTorch's global generator.
  std::uint64_t seed = 0;
  // With at::kMeta parameters have shapes but neither memory nor values. Give them memory, and then
  // values with reset_parameter().
  at::Device device = at::kCPU;
};

// Two thirds of 4 * width, rounded up to a multiple of 256: 11008 for 4096.
std::int64_t llama_intermediate(std::int64_t width);

enum class LinearBias { kNone, kLearned };

// x W^T + b with W as [out, in], plus what an adapter adds, if there is one.
class LlamaLinearImpl : public torch::nn::Module {
 public:
  LlamaLinearImpl(
      std::int64_t in,
      std::int64_t out,
      at::Device device,
      LinearBias has_bias = LinearBias::kNone);
  at::Tensor forward(const at::Tensor& x);

  // Adds `scale` (x A^T) B^T with modules lora_A, A [rank, in], and lora_B, B [out, rank], whose
  // values the caller sets. REQUIRES: there is no adapter yet.
  void add_lora(std::int64_t rank, double scale);
  bool has_lora() const { return lora_a_ != nullptr; }

  at::Tensor weight;
  at::Tensor bias;  // Undefined if there is none.

 private:
  std::shared_ptr<LlamaLinearImpl> lora_a_;
  std::shared_ptr<LlamaLinearImpl> lora_b_;
  double lora_scale_ = 0.0;
};
TORCH_MODULE(LlamaLinear);

// x / sqrt(mean(x^2) + epsilon), computed in fp32 or more, rounded to the dtype of x and then
// scaled.
class LlamaRmsNormImpl : public torch::nn::Module {
 public:
  // Normalises over the last dimension, of this width.
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
  // [B, T, C] to [B, T, C]. Each position attends to itself and those before it, including those in
  // `cache` unless it is null.
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

// Everything but the head: token ids [B, T] to [B, T, C].
class LlamaModelImpl : public torch::nn::Module {
 public:
  explicit LlamaModelImpl(const LlamaConfig& config);
  at::Tensor forward(
      const at::Tensor& ids,
      const LayerRunner& run_layer,
      KeyValueCache* cache = nullptr);

  Embedding embed_tokens{nullptr};

 private:
  LlamaConfig config_;
  torch::nn::ModuleList layers_{nullptr};
  LlamaRmsNorm norm_{nullptr};
};
TORCH_MODULE(LlamaModel);

class LlamaImpl : public LanguageModel {
 public:
  // Throws sherd::Error for an invalid configuration: a size below 1, heads whose width is not an
  // even whole number, heads that are not a multiple of kv_heads, an epsilon or theta that is not
  // positive, or a rope_scaling factor below 1.
  explicit LlamaImpl(const LlamaConfig& config);

  at::Tensor forward(const at::Tensor& ids) override;
  at::Tensor decode(const at::Tensor& ids, KeyValueCache& cache) override;
  std::int64_t positions_max() const override { return config_.sequence; }

  // Adds adapters to projections and freezes everything else. An adapter changes nothing at first:
  // A is drawn with a deviation of 1 / rank, like PEFT's "gaussian", and B is zero. Adapters get
  // the dtype of their projection. Call it once, before fully_shard or replicate. Throws
  // sherd::Error, and changes nothing, if the rank is below 1, if there are no targets or one names
  // no projection, or if the model already has adapters.
  void add_lora(const LoraConfig& lora);

  // The configuration as given, except that zeros are replaced by the values they stand for.
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
