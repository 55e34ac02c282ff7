// SPDX-License-Identifier: Apache-2.0
//
// LanguageModel is what decoders that predict the next token have in common: the loss, decoding
// with a cache of keys and values, and initial values that depend on a seed and on each
// parameter's name only. A plain
// torch::nn::Module that knows nothing of ranks or sharding. Thread rule: that of a torch module,
// one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

namespace sherd::models {

// The options have the names and the meaning of transformers' GenerationConfig.
struct GenerateOptions {
  std::int64_t tokens = 0;   // How many to add at most.
  double temperature = 1.0;  // 0: always the likeliest token.
  // Draws from so many of the likeliest tokens only; 0: from all.
  std::int64_t top_k = 0;
  // Draws only from the fewest of the likeliest tokens that together have this probability, in
  // (0, 1]; after top_k.
  double top_p = 1.0;
  std::uint64_t seed = 0;
  // Ends after any of these; the last token is then one of them.
  std::vector<std::int64_t> stop_ids = {};
  // Gets each new token as it is made, and returns the one to go on with. Ranks that hold a model
  // together can so take rank 0's, where hosts that round differently would draw others.
  std::function<std::int64_t(std::int64_t id)> on_token = nullptr;
};

// The keys and values of one layer for all positions so far, so that no position is computed
// twice. Heads that share keys share them here, too.
class LayerKeyValues {
 public:
  explicit LayerKeyValues(std::int64_t positions_max)
      : positions_max_(positions_max) {}

  struct KeysValues {
    at::Tensor keys;  // [B, K, S, D]
    at::Tensor values;
  };
  // Appends those of T positions, [B, K, T, D] each, and returns all so far; they share the
  // memory. REQUIRES: room for them, and the B, K, D and dtype of the first call.
  KeysValues append(const at::Tensor& keys, const at::Tensor& values);

  std::int64_t positions() const { return positions_; }
  std::int64_t positions_max() const { return positions_max_; }

 private:
  std::int64_t positions_max_;
  std::int64_t positions_ = 0;
  KeysValues memory_;  // From the first append() on, for all positions.
};

// Those of all layers of a model, in their order.
using KeyValueCache = std::vector<LayerKeyValues>;

// Runs one layer: returns forward(x), x [B, T, C] to the same. `forward` may be copied and called
// again later, as activation checkpointing does, as long as the layer's parameters have not
// changed.
using LayerRunner = std::function<at::Tensor(
    const torch::nn::Module& layer,
    const std::function<at::Tensor(const at::Tensor& x)>& forward,
    const at::Tensor& x)>;

class LanguageModel : public torch::nn::Module {
 public:
  // Token ids [B, T] (int64, T <= positions_max()) to logits
  // [B, T, vocabulary] in the dtype of the parameters. Each position sees
  // itself and those before it. Throws sherd::Error on other shapes.
  virtual at::Tensor forward(const at::Tensor& ids) = 0;

  // Room for so many positions, in all layers; at most positions_max(). Memory is taken as
  // decode() first needs it.
  KeyValueCache make_cache(std::int64_t positions) const;

  // Token ids [B, T] (int64) that follow those that `cache` has seen, to the logits of the token
  // after them, [B, vocabulary]. Adds theirs to the cache. Runs without gradients. Throws
  // sherd::Error on other shapes and where the cache lacks room; it is then as before. Mirrors
  // transformers' forward(past_key_values=cache, logits_to_keep=1).
  virtual at::Tensor decode(const at::Tensor& ids, KeyValueCache& cache) = 0;

  // The longest input, in tokens.
  virtual std::int64_t positions_max() const = 0;

  // Has forward() run each of its layers by `run`; null: by a plain call.
  void run_layers_with(LayerRunner run);

  // Mean cross entropy, in nats, of the logits for `inputs` against `targets`,
  // both [B, T]. A scalar, in fp32 where the logits have fewer bits.
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets);

  // `prompt` (at least one id) followed by options.tokens sampled ones, fewer after a stop id.
  // Tokens beyond positions_max() see the last positions_max() before them, which costs a whole
  // forward each. Runs without gradients and in evaluation mode; the mode is put back after. Same
  // model, prompt and options: same ids. Throws sherd::Error for options outside their ranges.
  std::vector<std::int64_t> generate(
      const std::vector<std::int64_t>& prompt, const GenerateOptions& options);

  // Writes into `parameter` the value that the constructor gives the parameter of that name, e.g.
  // "h.0.attn.c_attn.weight". Parameters made on the meta device get their values this way once
  // they have memory, in any order. Throws sherd::Error when the model has no parameter of that
  // name and shape, and while `parameter` is on the meta device.
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
  // Standard deviation of a matrix around 0.
  virtual double initial_deviation(const std::string& name) const = 0;
  virtual std::int64_t layers() const = 0;
  at::Tensor next_logits(
      const std::vector<std::int64_t>& ids, KeyValueCache& cache);

  std::uint64_t seed_;
  LayerRunner run_layer_;
};

}  // namespace sherd::models
