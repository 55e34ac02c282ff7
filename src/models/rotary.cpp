// SPDX-License-Identifier: Apache-2.0
#include "models/rotary.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>

namespace sherd::models {
namespace {

// Wavelengths up to original / high stay, those above original / low become factor times as long,
// and those in between are interpolated smoothly.
at::Tensor llama3_turns(const at::Tensor& turns, const RopeScaling& scaling) {
  const auto waves = turns *
      (static_cast<double>(scaling.original_positions) /
       (2.0 * std::numbers::pi));
  const auto kept = ((waves - scaling.low_freq_factor) /
                     (scaling.high_freq_factor - scaling.low_freq_factor))
                        .clamp(0.0, 1.0);
  return turns * kept + turns / scaling.factor * (1.0 - kept);
}

// Pairs before the one whose wave turns beta_fast times stay, those after the one that turns
// beta_slow times become factor times as long, and those in between are interpolated by their
// number.
at::Tensor yarn_turns(const at::Tensor& turns, const RotaryOptions& options) {
  const auto& scaling = options.scaling;
  const auto width = static_cast<double>(options.head_width);
  const auto pair_with = [&](double rotations) {
    const auto wavelength =
        static_cast<double>(scaling.original_positions) / rotations;
    return width * std::log(wavelength / (2.0 * std::numbers::pi)) /
        (2.0 * std::log(options.theta));
  };
  const auto low = std::max(std::floor(pair_with(scaling.beta_fast)), 0.0);
  auto high = std::min(std::ceil(pair_with(scaling.beta_slow)), width - 1.0);
  high += low == high ? 0.001 : 0.0;
  const auto stretched =
      ((at::arange(turns.numel(), turns.options()) - low) / (high - low))
          .clamp(0.0, 1.0);
  return turns / scaling.factor * stretched + turns * (1.0 - stretched);
}

at::Tensor scaled(const at::Tensor& turns, const RotaryOptions& options) {
  switch (options.scaling.kind) {
    case RopeKind::kDefault:
      return turns;
    case RopeKind::kLinear:
      return turns / options.scaling.factor;
    case RopeKind::kLlama3:
      return llama3_turns(turns, options.scaling);
    case RopeKind::kYarn:
      return yarn_turns(turns, options);
  }
  return turns;  // Not reached.
}

double attention_factor(const RopeScaling& scaling) {
  if (scaling.kind != RopeKind::kYarn) {
    return 1.0;
  }
  return scaling.attention_factor > 0.0 ? scaling.attention_factor
                                        : 0.1 * std::log(scaling.factor) + 1.0;
}

}  // namespace

// In fp32 throughout, with the same rounding as Hugging Face's: at position 8000 the angle itself
// is off by 5e-4, and checkpoints were trained with that.
RotaryTable rotary_table(const RotaryOptions& options, at::Device device) {
  const auto fp32 = at::TensorOptions(at::kFloat).device(device);
  const auto exponents = at::arange(0, options.head_width, 2, fp32) /
      static_cast<double>(options.head_width);
  const auto turns =
      scaled(at::pow(options.theta, exponents).reciprocal(), options);
  const auto positions =
      at::arange(options.first, options.first + options.positions, fp32);
  const auto half = positions.unsqueeze(1) * turns;
  const auto angles = at::cat({half, half}, -1);
  const auto factor = attention_factor(options.scaling);
  return {.cosine = angles.cos() * factor, .sine = angles.sin() * factor};
}

at::Tensor rotate(const at::Tensor& x, const RotaryTable& table) {
  const auto halves = x.chunk(2, -1);
  const auto crossed = at::cat({-halves[1], halves[0]}, -1);
  return x * table.cosine.to(x.scalar_type()) +
      crossed * table.sine.to(x.scalar_type());
}

}  // namespace sherd::models
