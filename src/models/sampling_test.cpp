// SPDX-License-Identifier: Apache-2.0
#include "models/sampling.h"

#include <cmath>
#include <map>
#include <string>
#include <vector>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "support/error_of.h"

namespace sherd::models {
namespace {

// Logits of tokens with these probabilities.
torch::Tensor logits_of(const std::vector<double>& probabilities) {
  return torch::tensor(probabilities, torch::kFloat).log() + 3.0;
}

void expect_near(
    const torch::Tensor& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.numel(), static_cast<std::int64_t>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(found[i].item<double>(), expected[i], 1e-6) << "token " << i;
  }
}

const std::vector<double> kProbabilities = {0.1, 0.4, 0.05, 0.3, 0.15};

TEST(Sampling, DrawsWithTheSoftmaxUnlessToldOtherwise) {
  expect_near(
      token_probabilities(logits_of(kProbabilities), {}), kProbabilities);
}

TEST(Sampling, ATemperatureRaisesProbabilitiesToItsInverse) {
  double sum = 0;
  for (const double p : kProbabilities) {
    sum += p * p;
  }
  std::vector<double> squared;
  for (const double p : kProbabilities) {
    squared.push_back(p * p / sum);
  }
  expect_near(
      token_probabilities(logits_of(kProbabilities), {.temperature = 0.5}),
      squared);
}

TEST(Sampling, TopKKeepsTheLikeliestOnly) {
  const auto logits = logits_of(kProbabilities);
  expect_near(
      token_probabilities(logits, {.top_k = 2}),
      {0, 0.4 / 0.7, 0, 0.3 / 0.7, 0});
  expect_near(token_probabilities(logits, {.top_k = 1}), {0, 1, 0, 0, 0});
  expect_near(token_probabilities(logits, {.top_k = 9}), kProbabilities);
}

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  const auto logits = logits_of(kProbabilities);
  expect_near(token_probabilities(logits, {.top_p = 0.6}), {0, 0.4, 0, 0.3, 0});
  expect_near(
      token_probabilities(logits, {.top_p = 0.75}), {0, 0.4, 0, 0.3, 0.15});
  expect_near(token_probabilities(logits, {.top_p = 0.01}), {0, 0.4, 0, 0, 0});
  // top_k leaves two tokens, with 0.57 and 0.43.
  expect_near(
      token_probabilities(logits, {.top_k = 2, .top_p = 0.5}),
      {0, 0.4 / 0.7, 0, 0, 0});
}

TEST(Sampling, TheSmallestNumbersKeepTheLikeliestToken) {
  const auto logits = logits_of(kProbabilities);
  for (const double least : {1e-40, 1e-300}) {
    expect_near(
        token_probabilities(logits, {.temperature = least}), {0, 1, 0, 0, 0});
    expect_near(
        token_probabilities(logits, {.top_p = least}), {0, 0.4, 0, 0, 0});
  }
}

TEST(Sampling, DrawsEachTokenAsOftenAsItIsProbable) {
  constexpr int kDraws = 4000;
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(11);
  const auto logits = logits_of(kProbabilities);
  std::map<std::int64_t, int> drawn;
  for (int i = 0; i < kDraws; ++i) {
    ++drawn[choose_token(logits, {.top_k = 3}, generator)];
  }
  EXPECT_EQ(drawn.size(), 3U);
  // Five standard deviations: 0.04.
  for (const std::int64_t token : {1, 3, 4}) {
    const auto p = kProbabilities[static_cast<std::size_t>(token)] / 0.85;
    EXPECT_NEAR(static_cast<double>(drawn[token]) / kDraws, p, 0.04) << token;
  }
}

TEST(Sampling, TemperatureZeroTakesTheLikeliestWhateverElseIsAsked) {
  const auto generator = at::make_generator<at::CPUGeneratorImpl>(11);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(
        choose_token(
            logits_of(kProbabilities),
            {.temperature = 0.0, .top_k = 3, .top_p = 0.9}, generator),
        1);
  }
}

TEST(Sampling, RefusesOptionsOutsideTheirRanges) {
  const auto refused = [](const GenerateOptions& options) {
    return test::error_of([&] { check_sampling(options); });
  };
  EXPECT_EQ(refused({.top_k = 1, .top_p = 1.0}), "no error");
  EXPECT_EQ(
      refused({.tokens = -1}),
      "[models] expected at least 0 tokens, found tokens -1");
  EXPECT_EQ(
      refused({.temperature = -0.5}),
      "[models] expected a temperature of at least 0, found temperature -0.5");
  EXPECT_NE(refused({.temperature = NAN}), "no error");
  EXPECT_EQ(
      refused({.top_k = -2}),
      "[models] expected a top_k of at least 0, found top_k -2");
  EXPECT_EQ(
      refused({.top_p = 0.0}),
      "[models] expected a top_p in (0, 1], found top_p 0");
  EXPECT_NE(refused({.top_p = 1.5}), "no error");
}

}  // namespace
}  // namespace sherd::models
