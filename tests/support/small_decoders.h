// SPDX-License-Identifier: Apache-2.0
//
// Language models small enough for parity tests, and their loss on tokens derived from batch and
// rank.
#pragma once

#include <sherd/models/gpt.h>
#include <sherd/models/llama.h>
#include <torch/torch.h>

namespace sherd::test {

struct SmallDecoder {
  bool tied = true;
  double dropout = 0.0;  // For Gpt.
  at::Device device = at::kCPU;
};

inline models::Gpt small_gpt(const SmallDecoder& wanted) {
  return models::Gpt(models::GptConfig{
      .layers = 3,
      .width = 16,
      .heads = 2,
      .sequence = 8,
      .vocabulary = 11,
      .dropout = wanted.dropout,
      .tied_head = wanted.tied,
      .seed = 5,
      .device = wanted.device});
}

inline models::Llama small_llama(const SmallDecoder& wanted) {
  return models::Llama(models::LlamaConfig{
      .layers = 3,
      .width = 16,
      .heads = 4,
      .kv_heads = 2,
      .intermediate = 20,
      .sequence = 8,
      .vocabulary = 11,
      .tied_head = wanted.tied,
      .seed = 5,
      .device = wanted.device});
}

// For either model.
template <typename Model>
torch::Tensor token_loss(Model& model, int batch, int rank) {
  torch::manual_seed(1000 * batch + rank);
  const auto ids = torch::randint(0, 11, {2, 9}, torch::kLong);
  return model->loss(
      ids.slice(1, 0, 8).contiguous(), ids.slice(1, 1, 9).contiguous());
}

}  // namespace sherd::test
