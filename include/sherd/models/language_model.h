// SPDX-License-Identifier: Apache-2.0
//
// LanguageModel is the base class of decoders that predict the next token: the loss, decoding with
// a cache of keys and values, and initial values that depend only on a seed and on each parameter's
// name. It is a plain torch::nn::Module that knows nothing of ranks or sharding. Embedding is the
// layer that these decoders begin with. Thread rule: that of a torch module, one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace sherd::models {

// The options have the names and the meaning of transformers' GenerationConfig.
struct GenerateOptions {
  std::int64_t tokens = 0;   // How many to add at most.
  double temperature = 1.0;  // 0: always the likeliest token.
  // Samples only from this many of the likeliest tokens. 0: from all.
  std::int64_t top_k = 0;
  // Samples only from the smallest set of likeliest tokens whose probabilities sum to at least
  // this, in (0, 1]. Applied after top_k.
  double top_p = 1.0;
  std::uint64_t seed = 0;
  // Generation ends after any of these tokens, which is then the last one.
  std::vector<std::int64_t> stop_ids = {};
  // Called with each new token; returns the token to continue with. Ranks that hold a model
  // together can use it to take rank 0's tokens, because hosts that round differently might sample
  // others.
  std::function<std::int64_t(std::int64_t id)> on_token = nullptr;
};

// The keys and values of one layer for all positions so far, so that no position is computed twice.
// If heads share keys and values, they share them here, too.
class LayerKeyValues {
 public:
  explicit LayerKeyValues(std::int64_t positions_max)
      : positions_max_(positions_max) {}

  struct KeysValues {
    at::Tensor keys;  // [B, K, S, D]
    at::Tensor values;
  };
  // Appends the keys and values of T positions, [B, K, T, D] each, and returns all so far, which
  // share the cache's memory. REQUIRES: there is room for them; B, K, D and dtype are those of the
  // first call.
  KeysValues append(const at::Tensor& keys, const at::Tensor& values);

  // B of the first call; 0 before it.
  std::int64_t rows() const {
    return positions_ == 0 ? 0 : memory_.keys.size(0);
  }
  std::int64_t positions() const { return positions_; }
  std::int64_t positions_max() const { return positions_max_; }

 private:
  std::int64_t positions_max_;
  std::int64_t positions_ = 0;
  KeysValues memory_;  // For all positions; made by the first append().
};

// The keys and values of all layers of a model, in order.
using KeyValueCache = std::vector<LayerKeyValues>;

// Runs one layer: returns forward(x), where x and the result are [B, T, C]. `forward` may be copied
// and called again later, as activation checkpointing does, as long as the layer's parameters have
// not changed.
using LayerRunner = std::function<at::Tensor(
    const torch::nn::Module& layer,
    const std::function<at::Tensor(const at::Tensor& x)>& forward,
    const at::Tensor& x)>;

// A table of rows, one for each token or position: torch::nn::Embedding, but without values at
// first. LibTorch's own fills its table on the CPU with numbers from the global generator, also for
// a model on the meta device.
class EmbeddingImpl : public torch::nn::Module {
 public:
  // With the dtype and on the device of `options`.
  EmbeddingImpl(
      std::int64_t rows, std::int64_t width, const at::TensorOptions& options);
  // Ids of any shape to their rows, [..., width].
  at::Tensor forward(const at::Tensor& ids);

  at::Tensor weight;  // [rows, width]
};
TORCH_MODULE(Embedding);

class LanguageModel : public torch::nn::Module {
 public:
  // Token ids [B, T] (int64, T <= positions_max()) to logits [B, T, vocabulary] in the dtype of the
  // parameters. Each position attends to itself and those before it. Throws sherd::Error for other
  // shapes.
  virtual at::Tensor forward(const at::Tensor& ids) = 0;

  // Returns a cache for this many positions, at most positions_max(), in all layers. The memory is
  // allocated when decode() first needs it.
  KeyValueCache make_cache(std::int64_t positions) const;

  // Token ids [B, T] (int64) that follow those in `cache` to the logits of the next token, [B,
  // vocabulary]. Adds the ids' keys and values to the cache. Runs without gradients. Throws
  // sherd::Error for other shapes, for another number of rows than the cache has, or if it has too
  // little room; it is then unchanged.
  // Mirrors transformers' forward(past_key_values=cache, logits_to_keep=1).
  virtual at::Tensor decode(const at::Tensor& ids, KeyValueCache& cache) = 0;

  // The longest input, in tokens.
  virtual std::int64_t positions_max() const = 0;

  // Makes forward() run each of its layers through `run`; null: by a plain call.
  void run_layers_with(LayerRunner run);

  // The mean cross entropy, in nats, of the logits for `inputs` against `targets`, both [B, T]. A
  // scalar, in fp32 if the logits have fewer bits.
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets);

  // Returns `prompt` (at least one id) followed by options.tokens sampled ids, or fewer if a stop
  // id comes. Tokens beyond positions_max() see only the last positions_max() before them, and each
  // of them costs a whole forward. Runs without gradients and in evaluation mode, and restores the
  // mode. The same model, prompt and options give the same ids. Throws sherd::Error if an option is
  // out of range.
  std::vector<std::int64_t> generate(
      const std::vector<std::int64_t>& prompt, const GenerateOptions& options);

  // Writes into `parameter` the value that the constructor gives the parameter of that name, e.g.
  // "h.0.attn.c_attn.weight". Parameters made on the meta device get their values this way once
  // they have memory, in any order. Throws sherd::Error if the model has no parameter of that name
  // and shape, or if `parameter` is still on the meta device.
  void reset_parameter(
      const std::string& name, const at::Tensor& parameter) const;

  // The same for each parameter of the model.
  void reset_parameters();

 protected:
  explicit LanguageModel(std::uint64_t seed);

  const LayerRunner& run_layer() const { return run_layer_; }  // Never null.

 private:
  void write_initial_value(
      const std::string& name, const at::Tensor& parameter) const;
  // The standard deviation of a matrix, whose mean is 0.
  virtual double initial_deviation(const std::string& name) const = 0;
  virtual std::int64_t layers() const = 0;
  at::Tensor next_logits(
      const std::vector<std::int64_t>& ids, KeyValueCache& cache);

  std::uint64_t seed_;
  LayerRunner run_layer_;
};

}  // namespace sherd::models
