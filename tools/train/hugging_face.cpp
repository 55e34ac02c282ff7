// SPDX-License-Identifier: Apache-2.0
#include "train/hugging_face.h"

#include <string_view>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

using Json = nlohmann::ordered_json;

Json gpt2(const TrainConfig& config, std::int64_t vocabulary) {
  return {
      {"architectures", {"GPT2LMHeadModel"}},
      {"model_type", "gpt2"},
      {"vocab_size", vocabulary},
      {"n_positions", config.seq},
      {"n_embd", config.width},
      {"n_layer", config.layers},
      {"n_head", config.heads},
      {"activation_function", "gelu_new"},
      {"layer_norm_epsilon", 1e-5},
      {"embd_pdrop", config.dropout},
      {"attn_pdrop", config.dropout},
      {"resid_pdrop", config.dropout},
      {"tie_word_embeddings", true}};
}

Json llama(const TrainConfig& config, std::int64_t vocabulary) {
  return {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"vocab_size", vocabulary},
      {"max_position_embeddings", config.seq},
      {"hidden_size", config.width},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"intermediate_size", config.intermediate},
      {"hidden_act", "silu"},
      {"rms_norm_eps", 1e-6},
      {"rope_theta", 10000.0},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"tie_word_embeddings", false}};
}

// Reads a config.json.
class Settings {
 public:
  Settings(const std::string& text, const std::string& path) : path_(path) {
    try {
      json_ = Json::parse(text);
    } catch (const Json::parse_error&) {
      refuse("a JSON object", "something else");
    }
    if (!json_.is_object()) {
      refuse("a JSON object", json_.type_name());
    }
  }

  std::string family() const { return json_.value("model_type", "none"); }

  std::int64_t count(const char* name) const {
    if (!json_.contains(name) || !json_[name].is_number_unsigned()) {
      refuse(
          std::string(name) + ", a whole number",
          json_.contains(name) ? json_[name].dump() : "none");
    }
    return json_[name].get<std::int64_t>();
  }

  // Missing is fine where that is what transformers takes then.
  void expect(const char* name, const Json& wanted, bool preset) const {
    const bool there = json_.contains(name) && !json_[name].is_null();
    if (there ? json_[name] != wanted : !preset) {
      refuse(
          std::string(name) + " " + wanted.dump(),
          there ? json_[name].dump() : "none");
    }
  }

  // The same of a group of settings, which may be missing as a whole.
  void expect_in(
      const char* group, const char* name, const Json& wanted) const {
    if (json_.contains(group) && json_[group].is_object() &&
        json_[group].value(name, wanted) != wanted) {
      refuse(
          std::string(group) + "." + name + " " + wanted.dump(),
          json_[group][name].dump());
    }
  }

  [[noreturn]] void refuse(
      const std::string& expected, const std::string& found) const {
    throw Error(path_ + ": expected " + expected + ", found " + found);
  }

 private:
  const std::string path_;
  Json json_;
};

TrainConfig gpt2_of(const Settings& settings) {
  settings.expect("activation_function", "gelu_new", true);
  settings.expect("layer_norm_epsilon", 1e-5, true);
  settings.expect("tie_word_embeddings", true, true);
  settings.expect("scale_attn_by_inverse_layer_idx", false, true);
  TrainConfig config;
  config.layers = settings.count("n_layer");
  config.width = settings.count("n_embd");
  config.heads = settings.count("n_head");
  config.seq = settings.count("n_positions");
  config.vocab = settings.count("vocab_size");
  settings.expect("n_inner", 4 * config.width, true);
  return config;
}

TrainConfig llama_of(const Settings& settings) {
  settings.expect("hidden_act", "silu", true);
  settings.expect("rms_norm_eps", 1e-6, true);
  settings.expect("rope_theta", 10000.0, true);
  settings.expect("rope_scaling", nullptr, true);
  settings.expect_in("rope_parameters", "rope_theta", 10000.0);
  settings.expect_in("rope_parameters", "rope_type", "default");
  settings.expect("attention_bias", false, true);
  settings.expect("mlp_bias", false, true);
  settings.expect("tie_word_embeddings", false, true);
  TrainConfig config;
  config.model = "llama";
  config.layers = settings.count("num_hidden_layers");
  config.width = settings.count("hidden_size");
  config.heads = settings.count("num_attention_heads");
  config.kv_heads = settings.count("num_key_value_heads");
  config.intermediate = settings.count("intermediate_size");
  config.seq = settings.count("max_position_embeddings");
  config.vocab = settings.count("vocab_size");
  return config;
}

}  // namespace

TrainConfig parse_hugging_face_config(
    const std::string& text, const std::string& path) {
  const Settings settings(text, path);
  if (settings.family() == "gpt2") {
    return gpt2_of(settings);
  }
  if (settings.family() == "llama") {
    return llama_of(settings);
  }
  settings.refuse("model_type gpt2 or llama", settings.family());
}

std::string name_from_hugging_face(
    const TrainConfig& config, const std::string& name) {
  if (config.model == "llama") {
    return name;
  }
  constexpr std::string_view kPrefix = "transformer.";
  const auto plain =
      name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
  const bool mask =
      plain.ends_with(".attn.bias") || plain.ends_with(".attn.masked_bias");
  return mask || plain == "lm_head.weight" ? "" : plain;
}

std::string hugging_face_config(
    const TrainConfig& config, std::int64_t vocabulary) {
  auto json = config.model == "llama" ? llama(config, vocabulary)
                                      : gpt2(config, vocabulary);
  // The vocabulary is bytes, or whatever ids the data had: none of them special.
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["torch_dtype"] = "float32";
  return json.dump(2) + "\n";
}

std::string hugging_face_name(
    const TrainConfig& config, const std::string& name) {
  const bool inside = config.model != "llama" && !name.starts_with("lm_head.");
  return inside ? "transformer." + name : name;
}

}  // namespace sherd::tools
