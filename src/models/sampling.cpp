// SPDX-License-Identifier: Apache-2.0
#include "models/sampling.h"

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
  auto scaled = logits / options.temperature;
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
  // A token is kept if those before it have not reached top_p, so the likeliest one always is.
  const auto kept = sorted.cumsum(-1) - sorted < options.top_p;
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
