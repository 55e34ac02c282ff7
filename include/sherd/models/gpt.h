// SPDX-License-Identifier: Apache-2.0
//
// Gpt is GPT-2 (Radford et al. 2019) as a plain torch::nn::Module: learned positions, pre-norm
// blocks, tanh GELU, biases, and a head tied to the token embedding. Parameter names and layouts
// are those of Hugging Face's GPT-2 without the leading "transformer." ("h.0.attn.c_attn.weight" is
// [in, out]), so its checkpoints load as they are. Nothing here knows about ranks or sharding.
// Thread rule: that of a torch module, one thread at a time.
#pragma once

#include <cstdint>
#include <string>
#include <ATen/core/Tensor.h>
#include <sherd/models/language_model.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace sherd::models {

struct GptConfig {
  std::int64_t layers = 8;
  std::int64_t width = 256;
  std::int64_t heads = 8;         // Must divide width.
  std::int64_t sequence = 128;    // The longest input, and learned positions.
  std::int64_t vocabulary = 256;  // 256: bytes.
  // Applied after embeddings, attention weights and each residual branch.
  double dropout = 0.0;
  // False adds "lm_head.weight" [vocabulary, width].
  bool tied_head = true;
  // Initial values depend only on this and on each parameter's name, not on the order of
  // construction or on LibTorch's global generator.
  std::uint64_t seed = 0;
  // With at::kMeta parameters have shapes but neither memory nor values. Give them memory, and then
  // values with reset_parameter().
  at::Device device = at::kCPU;
};

// x W + b with W as [in, out], the layout in GPT-2's checkpoints.
class ProjectionImpl : public torch::nn::Module {
 public:
  ProjectionImpl(std::int64_t in, std::int64_t out, at::Device device);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(Projection);

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const GptConfig& config);
  // [B, T, C] to [B, T, C]. Each position attends to itself and those before it, including those in
  // `cache` unless it is null.
  at::Tensor forward(const at::Tensor& x, LayerKeyValues* cache = nullptr);

 private:
  std::int64_t heads_;
  double dropout_;
  Projection c_attn_{nullptr};
  Projection c_proj_{nullptr};
};
TORCH_MODULE(Attention);

class MlpImpl : public torch::nn::Module {
 public:
  explicit MlpImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x);

 private:
  Projection c_fc_{nullptr};
  Projection c_proj_{nullptr};
};
TORCH_MODULE(Mlp);

// One layer: x + attention(norm(x)), then x + mlp(norm(x)).
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptConfig& config);
  at::Tensor forward(const at::Tensor& x, LayerKeyValues* cache = nullptr);

 private:
  double dropout_;
  torch::nn::LayerNorm ln_1_{nullptr};
  Attention attn_{nullptr};
  torch::nn::LayerNorm ln_2_{nullptr};
  Mlp mlp_{nullptr};
};
TORCH_MODULE(Block);

class GptImpl : public LanguageModel {
 public:
  // Throws sherd::Error for an invalid configuration: a size below 1, a width that is not a
  // multiple of heads, dropout outside [0, 1).
  explicit GptImpl(const GptConfig& config);

  at::Tensor forward(const at::Tensor& ids) override;
  at::Tensor decode(const at::Tensor& ids, KeyValueCache& cache) override;
  std::int64_t positions_max() const override { return config_.sequence; }

  const GptConfig& config() const { return config_; }

 private:
  double initial_deviation(const std::string& name) const override;
  // Everything but the head.
  at::Tensor transform(const at::Tensor& ids, KeyValueCache* cache);
  at::Tensor head(const at::Tensor& x);
  std::int64_t layers() const override { return config_.layers; }

  GptConfig config_;
  Embedding wte_{nullptr};  // Tokens; also the head when tied.
  Embedding wpe_{nullptr};  // Positions.
  torch::nn::ModuleList h_{nullptr};
  torch::nn::LayerNorm ln_f_{nullptr};
  Embedding lm_head_{nullptr};  // Null when tied.
};
TORCH_MODULE(Gpt);

}  // namespace sherd::models
