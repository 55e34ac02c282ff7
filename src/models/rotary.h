// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding (Su et al. 2021, arXiv 2104.09864) in Llama's
// layout: element i of a head is paired with element i + D / 2, and the pair is
// turned by position * theta^(-2 i / D). A product of two turned vectors then
// depends on the distance of their positions only. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>

namespace sherd::models {

// Cosine and sine of every angle, both [T, D] and fp32.
struct RotaryTable {
  at::Tensor cosine;
  at::Tensor sine;
};

struct RotaryOptions {
  std::int64_t positions = 0;
  std::int64_t head_width = 0;  // D, even.
  double theta = 10000.0;
};

RotaryTable rotary_table(const RotaryOptions& options, at::Device device);

// Turns x [..., T, D] at positions 0 to T - 1. Shape and dtype stay.
at::Tensor rotate(const at::Tensor& x, const RotaryTable& table);

}  // namespace sherd::models
