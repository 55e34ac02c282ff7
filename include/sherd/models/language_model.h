// SPDX-License-Identifier: Apache-2.0
//
// LanguageModel is what decoders that predict the next token have in common: the loss, sampling,
// and initial values that depend on a seed and on each parameter's name only. A plain
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

struct GenerateOptions {
  std::int64_t tokens = 0;   // How many to add.
  double temperature = 1.0;  // 0: always the likeliest token.
  std::uint64_t seed = 0;
};

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

  // The longest input, in tokens.
  virtual std::int64_t positions_max() const = 0;

  // Has forward() run each of its layers by `run`; null: by a plain call.
  void run_layers_with(LayerRunner run);

  // Mean cross entropy, in nats, of the logits for `inputs` against `targets`,
  // both [B, T]. A scalar, in fp32 where the logits have fewer bits.
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets);

  // `prompt` (at least one id) followed by options.tokens sampled ones. Runs
  // without gradients and in evaluation mode; the mode is put back after. Same
  // model, prompt and options: same ids.
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

  std::uint64_t seed_;
  LayerRunner run_layer_;
};

}  // namespace sherd::models
