// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding (Su et al. 2021, arXiv 2104.09864) in Llama's layout: element i of a
// head is paired with element i + D / 2, and the pair is rotated by position * theta^(-2 i / D).
// The product of two rotated vectors then depends only on the distance of their positions. Thread
// rule: pure functions, any thread.
#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>
#include <sherd/models/llama.h>

namespace sherd::models {

// The cosine and sine of every angle, both [T, D] and fp32; with kYarn multiplied by its attention
// factor.
struct RotaryTable {
  at::Tensor cosine;
  at::Tensor sine;
};

struct RotaryOptions {
  std::int64_t first = 0;       // The first position.
  std::int64_t positions = 0;   // The number of positions.
  std::int64_t head_width = 0;  // D, even.
  double theta = 10000.0;
  RopeScaling scaling = {};
};

RotaryTable rotary_table(const RotaryOptions& options, at::Device device);

// Rotates x [..., T, D] at the T positions of the table. Shape and dtype stay.
at::Tensor rotate(const at::Tensor& x, const RotaryTable& table);

}  // namespace sherd::models
