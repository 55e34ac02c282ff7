// SPDX-License-Identifier: Apache-2.0
//
// How many floating-point operations a decoder's training needs, for model FLOPs
// utilisation (MFU) as PaLM defines it (Chowdhery et al. 2022, appendix B): what
// forward and backward need by the model's shape, whether or not activations are
// computed twice, over what the processors could do in that time. Pure
// functions. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include "train/config.h"

namespace sherd::tools {

// The operations of forward and backward for one token, where a multiplication and an addition count
// as two: 6 * parameters + 12 * layers * attention_width() * sequence. `parameters` are those with
// which each token is multiplied: all of the model except tables in which rows are only looked up.
inline double flops_per_token(
    const TrainConfig& config, std::int64_t parameters) {
  return 6.0 * static_cast<double>(parameters) +
      12.0 * static_cast<double>(config.layers) *
      static_cast<double>(attention_width(config)) *
      static_cast<double>(config.seq);
}

// `peak_flops` is that of all ranks together, in operations per second. Nullopt if it is 0, which
// means unknown.
inline std::optional<double> model_flops_utilisation(
    double tokens_per_s, double flops_of_token, double peak_flops) {
  return peak_flops > 0
      ? std::optional(tokens_per_s * flops_of_token / peak_flops)
      : std::nullopt;
}

}  // namespace sherd::tools
