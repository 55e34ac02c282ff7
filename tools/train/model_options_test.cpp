// SPDX-License-Identifier: Apache-2.0
#include "train/model_options.h"

#include <string>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

// The model as a checkpoint describes it.
TrainConfig saved_llama() {
  TrainConfig config;
  config.model = "llama";
  config.width = 64;
  config.heads = 4;
  config.kv_heads = 2;
  config.intermediate = 256;
  config.seq = 32;
  config.vocab = 300;
  config.steps = 7;
  return config;
}

std::string refusal(const TrainConfig& given, const TrainConfig& model) {
  try {
    with_sizes_of(given, model, "x/step-7");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ModelOptions, AreThoseOfTheModelAlone) {
  const auto options = model_options(saved_llama());
  EXPECT_EQ(options.model, "llama");
  EXPECT_EQ(options.kv_heads, 2);
  EXPECT_EQ(options.vocab, 300);
  EXPECT_EQ(options.steps, TrainConfig{}.steps);
}

TEST(ModelOptions, SizesThatAreLeftOpenComeFromTheModel) {
  const auto model = model_options(saved_llama());
  auto given = model;
  given.kv_heads = 0;
  given.intermediate = 0;
  given.vocab = 0;
  given.head_width = 16;  // The width of 4 heads.
  given.lr = 3.0;
  const auto config = with_sizes_of(given, model, "x");
  EXPECT_EQ(model_options(config), model);
  EXPECT_EQ(config.lr, 3.0);
}

TEST(ModelOptions, OfAnotherModelAreAnErrorThatNamesBoth) {
  const auto model = model_options(saved_llama());
  auto given = model;
  given.width = 128;
  EXPECT_EQ(
      refusal(given, model),
      "--width: expected 64, as in the model of x/step-7, found 128");
  given = model;
  given.model = "gpt";
  EXPECT_EQ(
      refusal(given, model),
      "--model: expected llama, as in the model of x/step-7, found gpt");
  given = model;
  given.vocab = 301;
  EXPECT_EQ(
      refusal(given, model),
      "--vocab: expected 300, as in the model of x/step-7, found 301");
}

TEST(ModelOptions, WhatWeightsDoNotDependOnMayDiffer) {
  auto model = model_options(saved_llama());
  auto given = model;
  given.seq = 128;
  given.rope_scaling = "yarn:4,32,1,32";
  given.rope_theta = 1e6;
  EXPECT_EQ(refusal(given, model), "accepted");
  model = {};
  given = {};
  given.dropout = 0.1;
  EXPECT_EQ(refusal(given, model), "accepted");
  given.seq = 64;  // GPT-2 has an embedding of each position.
  EXPECT_EQ(
      refusal(given, model),
      "--seq: expected 128, as in the model of x/step-7, found 64");
}

TEST(ModelOptions, ARunGoesOnWithTheSameModelButForDropout) {
  auto saved = model_options(saved_llama());
  saved.rope_theta = 100;
  saved.head_width = 16;  // The width of 4 heads.
  auto given = saved;
  given.head_width = 0;
  given.dropout = 0.1;
  EXPECT_NO_THROW(expect_same_model(given, saved, "x"));
  const auto refusal = [&](const TrainConfig& config) -> std::string {
    try {
      expect_same_model(config, saved, "x/step-7");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  given.rope_theta = 10000;
  EXPECT_EQ(
      refusal(given),
      "--rope-theta: expected 100.0, as in the model of x/step-7, found "
      "10000.0");
  given = saved;
  given.seq = 64;
  EXPECT_EQ(
      refusal(given),
      "--seq: expected 32, as in the model of x/step-7, found 64");
  given = saved;
  given.kv_heads = 0;
  EXPECT_EQ(
      refusal(given),
      "--kv-heads: expected 2, as in the model of x/step-7, found 0");
}

}  // namespace
}  // namespace sherd::tools
