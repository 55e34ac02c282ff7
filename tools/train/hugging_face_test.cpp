// SPDX-License-Identifier: Apache-2.0
#include "train/hugging_face.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace sherd::tools {
namespace {

TEST(HuggingFace, DescribesAGpt2) {
  TrainConfig config;
  config.layers = 3;
  config.width = 64;
  config.heads = 2;
  config.seq = 32;
  const auto json = nlohmann::json::parse(hugging_face_config(config, 256));
  EXPECT_EQ(json["model_type"], "gpt2");
  EXPECT_EQ(json["architectures"][0], "GPT2LMHeadModel");
  EXPECT_EQ(json["n_layer"], 3);
  EXPECT_EQ(json["n_embd"], 64);
  EXPECT_EQ(json["n_head"], 2);
  EXPECT_EQ(json["n_positions"], 32);
  EXPECT_EQ(json["vocab_size"], 256);
  EXPECT_TRUE(json["eos_token_id"].is_null());
  EXPECT_EQ(
      hugging_face_name(config, "h.0.ln_1.weight"),
      "transformer.h.0.ln_1.weight");
  EXPECT_EQ(hugging_face_name(config, "lm_head.weight"), "lm_head.weight");
}

TEST(HuggingFace, DescribesALlama) {
  TrainConfig config;
  config.model = "llama";
  config.kv_heads = 2;
  config.intermediate = 768;
  const auto json = nlohmann::json::parse(hugging_face_config(config, 300));
  EXPECT_EQ(json["model_type"], "llama");
  EXPECT_EQ(json["num_key_value_heads"], 2);
  EXPECT_EQ(json["intermediate_size"], 768);
  EXPECT_EQ(json["tie_word_embeddings"], false);
  EXPECT_EQ(
      hugging_face_name(config, "model.norm.weight"), "model.norm.weight");
}

}  // namespace
}  // namespace sherd::tools
