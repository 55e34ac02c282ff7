// SPDX-License-Identifier: Apache-2.0
#include "models/rotary.h"

#include <numbers>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>

namespace sherd::models {
namespace {

// Wavelengths up to original / high stay, those above original / low become
// factor times as long, and those between go over smoothly.
at::Tensor llama3_turns(const at::Tensor& turns, const RopeScaling& scaling) {
  const auto waves = turns *
      (static_cast<double>(scaling.original_positions) /
       (2.0 * std::numbers::pi));
  const auto kept = ((waves - scaling.low_freq_factor) /
                     (scaling.high_freq_factor - scaling.low_freq_factor))
                        .clamp(0.0, 1.0);
  return turns * kept + turns / scaling.factor * (1.0 - kept);
}

at::Tensor scaled(const at::Tensor& turns, const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeKind::kDefault:
      return turns;
    case RopeKind::kLinear:
      return turns / scaling.factor;
    case RopeKind::kLlama3:
      return llama3_turns(turns, scaling);
  }
  return turns;  // Not reached.
}

}  // namespace

// In fp32 throughout, rounding as Hugging Face's does: at position 8000 the
// angle itself is off by 5e-4, and checkpoints were trained with that.
RotaryTable rotary_table(const RotaryOptions& options, at::Device device) {
  const auto fp32 = at::TensorOptions(at::kFloat).device(device);
  const auto exponents = at::arange(0, options.head_width, 2, fp32) /
      static_cast<double>(options.head_width);
  const auto turns =
      scaled(at::pow(options.theta, exponents).reciprocal(), options.scaling);
  const auto positions =
      at::arange(options.first, options.first + options.positions, fp32);
  const auto half = positions.unsqueeze(1) * turns;
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
