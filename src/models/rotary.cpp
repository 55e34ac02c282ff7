// SPDX-License-Identifier: Apache-2.0
#include "models/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>

namespace sherd::models {

// In fp32 throughout, rounding as Hugging Face's does: at position 8000 the
// angle itself is off by 5e-4, and checkpoints were trained with that.
RotaryTable rotary_table(const RotaryOptions& options, at::Device device) {
  const auto fp32 = at::TensorOptions(at::kFloat).device(device);
  const auto exponents = at::arange(0, options.head_width, 2, fp32) /
      static_cast<double>(options.head_width);
  const auto turns = at::pow(options.theta, exponents).reciprocal();
  const auto half = at::arange(options.positions, fp32).unsqueeze(1) * turns;
  const auto angles = at::cat({half, half}, -1);
  return {.cosine = angles.cos(), .sine = angles.sin()};
}

at::Tensor rotate(const at::Tensor& x, const RotaryTable& table) {
  const auto halves = x.chunk(2, -1);
  const auto crossed = at::cat({-halves[1], halves[0]}, -1);
  return x * table.cosine.to(x.scalar_type()) +
      crossed * table.sine.to(x.scalar_type());
}

}  // namespace sherd::models
