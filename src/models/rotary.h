// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding (Su et al. 2021, arXiv 2104.09864) in Llama's
// layout: element i of a head is paired with element i + D / 2, and the pair is
// turned by position * theta^(-2 i / D). A product of two turned vectors then
// depends on the distance of their positions only. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>
#include <sherd/models/llama.h>

namespace sherd::models {

// Cosine and sine of every angle, both [T, D] and fp32; of kYarn times its
// attention factor.
struct RotaryTable {
  at::Tensor cosine;
  at::Tensor sine;
};

struct RotaryOptions {
  std::int64_t first = 0;       // The first position, and
  std::int64_t positions = 0;   // how many.
  std::int64_t head_width = 0;  // D, even.
  double theta = 10000.0;
  RopeScaling scaling = {};
};

RotaryTable rotary_table(const RotaryOptions& options, at::Device device);

// Turns x [..., T, D] at the T positions of the table. Shape and dtype stay.
at::Tensor rotate(const at::Tensor& x, const RotaryTable& table);

}  // namespace sherd::models
