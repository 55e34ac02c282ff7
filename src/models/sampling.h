// SPDX-License-Identifier: Apache-2.0
//
// Chooses the next token from a model's logits. Thread rule: pure functions, except for the
// generator; any thread.
#pragma once

#include <cstdint>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <sherd/models/language_model.h>

namespace sherd::models {

// Throws sherd::Error if temperature, top_k or top_p is out of range.
void check_sampling(const GenerateOptions& options);

// Logits [vocabulary] in fp32 to the weights for sampling, up to a common factor: a softmax at the
// temperature, with 0 for the tokens that top_k and top_p exclude. REQUIRES: a temperature above 0.
at::Tensor token_probabilities(
    const at::Tensor& logits, const GenerateOptions& options);

// Returns the likeliest token if the temperature is 0, otherwise a sampled one.
std::int64_t choose_token(
    const at::Tensor& logits,
    const GenerateOptions& options,
    const at::Generator& generator);

}  // namespace sherd::models
