// SPDX-License-Identifier: Apache-2.0
//
// How the next token is chosen among those that a model thinks likely. Pure functions but for the
// generator; any thread.
#pragma once

#include <cstdint>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <sherd/models/language_model.h>

namespace sherd::models {

// Throws sherd::Error for a temperature, top_k or top_p outside its range.
void check_sampling(const GenerateOptions& options);

// Logits [vocabulary] in fp32 to what tokens are drawn with, up to a common factor: a softmax at
// the temperature, and 0 for the tokens that top_k and top_p leave out. REQUIRES: a temperature
// above 0.
at::Tensor token_probabilities(
    const at::Tensor& logits, const GenerateOptions& options);

// The likeliest token where the temperature is 0, else a drawn one.
std::int64_t choose_token(
    const at::Tensor& logits,
    const GenerateOptions& options,
    const at::Generator& generator);

}  // namespace sherd::models
