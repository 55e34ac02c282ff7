// SPDX-License-Identifier: Apache-2.0
#include "train/hugging_face.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

// The settings that every config.json of a Llama or similar model has.
nlohmann::json sizes(const char* family) {
  return {{"model_type", family},         {"vocab_size", 100},
          {"hidden_size", 4096},          {"num_hidden_layers", 2},
          {"intermediate_size", 96},      {"num_attention_heads", 64},
          {"max_position_embeddings", 32}};
}

std::string refusal(const std::string& text) {
  try {
    parse_hugging_face_config(text, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

// What a config.json of that family with these changes is refused for.
std::string with(const char* family, const nlohmann::json& changes) {
  auto json = sizes(family);
  json.update(changes);
  return refusal(json.dump());
}

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
  EXPECT_EQ(
      refusal("{\"model_type\": \"bert\"}"),
      "config.json: expected model_type gpt2, llama, mistral, qwen2 or qwen3, "
      "found bert");
  EXPECT_EQ(
      refusal("{\"model_type\": \"mixtral\"}"),
      "config.json: expected model_type gpt2, llama, mistral, qwen2 or qwen3, "
      "found mixtral");
  EXPECT_EQ(
      refusal("{\"model_type\": 1}"),
      "config.json: expected model_type, a text, found 1");
  EXPECT_EQ(
      refusal("{\"rope_theta\": 1e999}"),
      "config.json: expected a JSON object, found something else");
  EXPECT_EQ(refusal("[1]"), "config.json: expected a JSON object, found array");
  EXPECT_EQ(
      refusal("{"),
      "config.json: expected a JSON object, found something else");
  EXPECT_EQ(
      refusal("{\"model_type\": \"gpt2\"}"),
      "config.json: expected n_layer, a whole number, found none");
  EXPECT_EQ(with("llama", nlohmann::json::object()), "accepted");
  EXPECT_EQ(
      with("llama", {{"rope_parameters", {{"rope_type", "longrope"}}}}),
      "config.json: expected a rope_type of default, linear, llama3 or yarn, "
      "found \"longrope\"");
  EXPECT_EQ(
      with("llama", {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}}),
      "config.json: expected a rope_type of default, linear, llama3 or yarn, "
      "found \"dynamic\"");
  EXPECT_EQ(
      with("llama", {{"rope_scaling", {{"type", "linear"}}}}),
      "config.json: expected rope_parameters.factor, a number, found null");
  EXPECT_EQ(
      with("llama", {{"attention_bias", true}}),
      "config.json: expected attention_bias false, found true");
  EXPECT_EQ(
      with("llama", {{"hidden_act", "gelu"}}),
      "config.json: expected hidden_act \"silu\", found \"gelu\"");
  EXPECT_EQ(
      with("qwen3", {{"layer_types", {"full_attention", "other"}}}),
      "config.json: expected layer_types of full_attention, found \"other\"");
  EXPECT_EQ(
      with("llama", {{"rms_norm_eps", "small"}}),
      "config.json: expected rms_norm_eps, a number, found \"small\"");
  EXPECT_EQ(
      with(
          "llama",
          {{"rope_parameters",
            {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}}),
      "config.json: expected rope_parameters.partial_rotary_factor 1.0, found "
      "0.5");
}

TEST(HuggingFace, RefusesAWindowOfSomeLayers) {
  EXPECT_EQ(
      with("llama", {{"use_sliding_window", true}}),
      "config.json: expected use_sliding_window false, found true");
  EXPECT_EQ(
      with("qwen2", {{"use_sliding_window", true}}),
      "config.json: expected max_window_layers 0, found none");
  EXPECT_EQ(
      with(
          "qwen2",
          {{"use_sliding_window", true},
           {"max_window_layers", 0},
           {"layer_types", {"sliding_attention", "full_attention"}}}),
      "config.json: expected layer_types of sliding_attention, found "
      "\"full_attention\"");
}

TEST(HuggingFace, ReadsWhatItWritesOfEachFamily) {
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3"}) {
    TrainConfig config;
    config.model = family;
    config.kv_heads = 2;
    config.intermediate = 768;
    config.head_width = 40;
    config.vocab = 300;
    config.rope_theta = 5e5;
    config.norm_epsilon = 1e-5;
    config.tied_head = true;
    const auto expect_same = [&] {
      EXPECT_EQ(
          parse_hugging_face_config(hugging_face_config(config, 300), "x"),
          config)
          << family << ", " << config.rope_scaling;
    };
    for (const char* scaling :
         {"none", "linear:2.5", "llama3:8.0,1.0,4.0,64", "yarn:4.0,32.0,1.0,64",
          "yarn:4.0,16.0,2.0,64,1.25"}) {
      config.rope_scaling = scaling;
      expect_same();
    }
    if (config.model != "llama") {
      config.sliding_window = 17;
      expect_same();
    }
  }
}

TEST(HuggingFace, AWindowIsNotLeftOutOfALlama) {
  TrainConfig config;
  config.model = "llama";
  config.sliding_window = 17;
  try {
    hugging_face_config(config, 300);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "--sliding-window: expected 0 with --model llama (--model mistral is a "
        "Llama with a window), found 17");
  }
}

TEST(HuggingFace, AllLayersOfAQwenSlide) {
  TrainConfig config;
  config.model = "qwen2";
  config.sliding_window = 17;
  const auto json = nlohmann::json::parse(hugging_face_config(config, 300));
  EXPECT_EQ(json["use_sliding_window"], true);
  EXPECT_EQ(json["sliding_window"], 17);
  EXPECT_EQ(json["max_window_layers"], 0);
}

TEST(HuggingFace, TakesWhatTransformersTakesWhereASettingIsMissing) {
  const auto parsed = [](const nlohmann::json& json) {
    return parse_hugging_face_config(json.dump(), "x");
  };
  const auto llama = parsed(sizes("llama"));
  EXPECT_EQ(llama.kv_heads, 64);
  EXPECT_EQ(llama.head_width, 0);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.rope_theta, 10000.0);
  EXPECT_FALSE(llama.tied_head);
  EXPECT_EQ(parsed(sizes("mistral")).kv_heads, 8);
  EXPECT_EQ(parsed(sizes("mistral")).sliding_window, 4096);
  EXPECT_EQ(parsed(sizes("qwen2")).kv_heads, 32);
  EXPECT_EQ(parsed(sizes("qwen3")).head_width, 128);
  auto json = sizes("mistral");
  json["sliding_window"] = nullptr;
  EXPECT_EQ(parsed(json).sliding_window, 0);
}

TEST(HuggingFace, ReadsRopeAsOldAndNewVersionsWriteIt) {
  auto older = sizes("llama");
  older["rope_theta"] = 5e5;
  older["rope_scaling"] = {
      {"rope_type", "llama3"},
      {"factor", 8.0},
      {"low_freq_factor", 1.0},
      {"high_freq_factor", 4.0},
      {"original_max_position_embeddings", 8192}};
  auto newer = sizes("llama");
  newer["rope_parameters"] = older["rope_scaling"];
  newer["rope_parameters"]["rope_theta"] = 5e5;
  for (const auto& json : {older, newer}) {
    const auto found = parse_hugging_face_config(json.dump(), "x");
    EXPECT_EQ(found.rope_theta, 5e5);
    EXPECT_EQ(found.rope_scaling, "llama3:8.0,1.0,4.0,8192");
  }
}

TEST(HuggingFace, YarnTakesWhatIsMissingAsTransformersDoes) {
  auto json = sizes("qwen2");
  json["max_position_embeddings"] = 32768;
  json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}};
  EXPECT_EQ(
      parse_hugging_face_config(json.dump(), "x").rope_scaling,
      "yarn:4.0,32.0,1.0,32768");
  json["rope_scaling"]["truncate"] = false;
  EXPECT_EQ(
      refusal(json.dump()),
      "config.json: expected rope_parameters.truncate true, found false");
}

TEST(HuggingFace, LeavesOutTensorsThatAreNoParameters) {
  TrainConfig config;
  config.model = "qwen2";
  EXPECT_EQ(name_from_hugging_face(config, "lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(
      name_from_hugging_face(
          config, "model.layers.0.self_attn.rotary_emb.inv_freq"),
      "");
  config.tied_head = true;
  EXPECT_EQ(name_from_hugging_face(config, "lm_head.weight"), "");
}

}  // namespace
}  // namespace sherd::tools
