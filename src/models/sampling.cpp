// SPDX-License-Identifier: Apache-2.0
#include "models/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <ATen/TensorOperators.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>
#include "models/config_checks.h"

namespace sherd::models {

void check_sampling(const GenerateOptions& options) {
  expect(options.tokens >= 0, "at least 0 tokens", "tokens", options.tokens);
  expect(
      options.temperature >= 0.0 && std::isfinite(options.temperature),
      "a temperature of at least 0", "temperature", options.temperature);
  expect(options.top_k >= 0, "a top_k of at least 0", "top_k", options.top_k);
  expect(
      options.top_p > 0.0 && options.top_p <= 1.0, "a top_p in (0, 1]", "top_p",
      options.top_p);
}

at::Tensor token_probabilities(
    const at::Tensor& logits, const GenerateOptions& options) {
  // The largest is made 0 first, which stays finite if it is divided by a very small temperature.
  auto scaled = (logits - logits.max()) /
      std::max(options.temperature,
               static_cast<double>(std::numeric_limits<float>::min()));
  if (options.top_k > 0 && options.top_k < scaled.numel()) {
    const auto least = std::get<0>(at::topk(scaled, options.top_k)).min();
    scaled = scaled.masked_fill(
        scaled < least, -std::numeric_limits<double>::infinity());
  }
  const auto probabilities = at::softmax(scaled, -1);
  if (options.top_p == 1.0) {
    return probabilities;
  }
  const auto [sorted, tokens] =
      at::sort(probabilities, /*dim=*/-1, /*descending=*/true);
  // A token is kept if those before it have not reached top_p, and the likeliest one always is,
  // also if top_p is 0 as a float.
  const auto kept = sorted.cumsum(-1) - sorted < options.top_p;
  kept.select(-1, 0).fill_(true);
  return at::zeros_like(probabilities).scatter(-1, tokens, sorted * kept);
}

std::int64_t choose_token(
    const at::Tensor& logits,
    const GenerateOptions& options,
    const at::Generator& generator) {
  const auto token = options.temperature == 0.0
      ? logits.argmax()
      : at::multinomial(
            token_probabilities(logits, options), 1, /*replacement=*/false,
            generator);
  return token.item<std::int64_t>();
}

}  // namespace sherd::models
