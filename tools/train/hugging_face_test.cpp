// SPDX-License-Identifier: Apache-2.0
#include "train/hugging_face.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>

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

TEST(HuggingFace, ReadsWhatItWrites) {
  TrainConfig config;
  config.model = "llama";
  config.kv_heads = 2;
  config.intermediate = 768;
  config.seq = 99;
  const auto found =
      parse_hugging_face_config(hugging_face_config(config, 300), "x");
  EXPECT_EQ(found.model, "llama");
  EXPECT_EQ(found.kv_heads, 2);
  EXPECT_EQ(found.intermediate, 768);
  EXPECT_EQ(found.seq, 99);
  EXPECT_EQ(found.vocab, 300);
  const TrainConfig gpt;
  EXPECT_EQ(
      parse_hugging_face_config(hugging_face_config(gpt, 256), "x").layers,
      gpt.layers);
  for (const char* name : {"h.0.ln_1.weight", "wte.weight"}) {
    EXPECT_EQ(name_from_hugging_face(gpt, hugging_face_name(gpt, name)), name);
    EXPECT_EQ(name_from_hugging_face(gpt, name), name);
  }
  EXPECT_EQ(name_from_hugging_face(gpt, "h.0.attn.bias"), "");
  EXPECT_EQ(name_from_hugging_face(gpt, "lm_head.weight"), "");
}

TEST(HuggingFace, RefusesWhatSherdHasNoEqualOf) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      parse_hugging_face_config(text, "config.json");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(
      refusal("{\"model_type\": \"bert\"}"),
      "config.json: expected model_type gpt2 or llama, found bert");
  EXPECT_EQ(refusal("[1]"), "config.json: expected a JSON object, found array");
  EXPECT_EQ(
      refusal("{"),
      "config.json: expected a JSON object, found something else");
  EXPECT_EQ(
      refusal("{\"model_type\": \"gpt2\"}"),
      "config.json: expected n_layer, a whole number, found none");
  EXPECT_EQ(
      refusal("{\"model_type\": \"llama\", \"rope_theta\": 5e5}"),
      "config.json: expected rope_theta 10000.0, found 500000.0");
  EXPECT_EQ(
      refusal("{\"model_type\": \"llama\", \"rope_parameters\": "
              "{\"rope_type\": \"llama3\"}}"),
      "config.json: expected rope_parameters.rope_type \"default\", found "
      "\"llama3\"");
}

}  // namespace
}  // namespace sherd::tools
