// SPDX-License-Identifier: Apache-2.0
//
// Inputs and small formulas that the tests of several models share. Thread
// rule: one thread.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <torch/torch.h>

namespace sherd::models {

// Ids [rows, positions] below `vocabulary`, by the formula of the Python references.
inline torch::Tensor ids_by_rule(
    std::int64_t rows, std::int64_t positions, std::int64_t vocabulary) {
  return (torch::arange(rows * positions) * 5 + 3)
      .remainder(vocabulary)
      .view({rows, positions});
}

// Softmax over the last dimension without the elements at which `hidden` is true.
inline torch::Tensor softmax_by_hand(
    const torch::Tensor& scores, const torch::Tensor& hidden) {
  const auto e = scores.masked_fill(hidden, -INFINITY).exp();
  return e / e.sum(-1, true);
}

// A mask [T, T] of the positions that a position must not attend to.
inline torch::Tensor future(std::int64_t positions) {
  return torch::ones({positions, positions}, torch::kBool).triu(1);
}

inline torch::Tensor loss_by_hand(
    const torch::Tensor& logits, const torch::Tensor& targets) {
  const auto log_p = logits - logits.exp().sum(-1, true).log();
  return -log_p.gather(-1, targets.unsqueeze(-1)).mean();
}

// `ghost` was made on the meta device with the configuration of `real`.
inline void expect_shapes_without_memory(
    const torch::nn::Module& ghost, const torch::nn::Module& real) {
  const auto shapes = ghost.named_parameters();
  const auto values = real.named_parameters();
  ASSERT_EQ(shapes.keys(), values.keys());
  for (const auto& item : shapes) {
    EXPECT_TRUE(item.value().is_meta()) << item.key();
    EXPECT_TRUE(item.value().requires_grad()) << item.key();
    EXPECT_EQ(item.value().sizes(), values[item.key()].sizes()) << item.key();
  }
  EXPECT_TRUE(ghost.buffers().empty());
}

// The error message for a model of this configuration.
template <typename Model, typename Config>
std::string refusal(const Config& config) {
  try {
    const Model model(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace sherd::models
