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

// The names that transformers uses for the models of LlamaImpl.
struct Family {
  const char* name;  // Used as model_type and for --model.
  const char* architecture;
  // What transformers assumes if a config.json has no such setting; 0 if nothing.
  std::int64_t kv_heads_preset;
  std::int64_t head_dim_preset;
};
constexpr Family kFamilies[] = {
    {"llama", "LlamaForCausalLM", 0, 0},
    {"mistral", "MistralForCausalLM", 8, 0},
    {"qwen2", "Qwen2ForCausalLM", 32, 0},
    {"qwen3", "Qwen3ForCausalLM", 32, 128},
};

const Family* family_named(const std::string& name) {
  for (const auto& family : kFamilies) {
    if (name == family.name) {
      return &family;
    }
  }
  return nullptr;
}

Json rope_scaling_json(const TrainConfig& config) {
  const auto scaling = parse_rope_scaling(config.rope_scaling);
  if (scaling.kind == "none") {
    return nullptr;
  }
  Json json = {{"rope_type", scaling.kind}, {"factor", scaling.factor}};
  if (scaling.kind == "llama3") {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
    json["original_max_position_embeddings"] = scaling.original_positions;
  }
  if (scaling.kind == "yarn") {
    json["beta_fast"] = scaling.beta_fast;
    json["beta_slow"] = scaling.beta_slow;
    json["original_max_position_embeddings"] = scaling.original_positions;
    if (scaling.attention_factor > 0.0) {
      json["attention_factor"] = scaling.attention_factor;
    }
  }
  return json;
}

Json llama(const TrainConfig& config, std::int64_t vocabulary) {
  Json json = {
      {"architectures", {family_named(config.model)->architecture}},
      {"model_type", config.model},
      {"vocab_size", vocabulary},
      {"max_position_embeddings", config.seq},
      {"hidden_size", config.width},
      {"num_hidden_layers", config.layers},
      {"num_attention_heads", config.heads},
      {"num_key_value_heads", config.kv_heads},
      {"head_dim",
       config.head_width > 0 ? config.head_width : config.width / config.heads},
      {"intermediate_size", config.intermediate},
      {"hidden_act", "silu"},
      {"rms_norm_eps", config.norm_epsilon},
      {"rope_theta", config.rope_theta},
      {"rope_scaling", rope_scaling_json(config)},
      {"attention_bias", false},
      {"mlp_bias", false},
      {"tie_word_embeddings", config.tied_head}};
  const bool slides = config.sliding_window > 0;
  if (config.model == "mistral") {
    json["sliding_window"] = slides ? Json(config.sliding_window) : Json();
  } else if (config.model != "llama") {
    json["use_sliding_window"] = slides;
    if (slides) {
      json["sliding_window"] = config.sliding_window;
      json["max_window_layers"] = 0;  // The layers from this one on slide.
    }
  }
  return json;
}

// Reads a config.json.
class Settings {
 public:
  Settings(const std::string& text, const std::string& path) : path_(path) {
    try {
      json_ = Json::parse(text);
    } catch (
        const Json::exception&) {  // Also 1e999, a number that is too large.
      refuse("a JSON object", "something else");
    }
    if (!json_.is_object()) {
      refuse("a JSON object", json_.type_name());
    }
  }

  std::string family() const {
    const auto found = value("model_type", "none");
    if (!found.is_string()) {
      refuse("model_type, a text", found.dump());
    }
    return found.get<std::string>();
  }

  bool has(const char* name) const { return json_.contains(name); }

  std::int64_t count_or(const char* name, std::int64_t preset) const {
    return value(name, nullptr).is_null() ? preset : count(name);
  }

  std::int64_t count(const char* name) const {
    if (!json_.contains(name) || !json_[name].is_number_unsigned()) {
      refuse(
          std::string(name) + ", a whole number",
          json_.contains(name) ? json_[name].dump() : "none");
    }
    return json_[name].get<std::int64_t>();
  }

  // A missing setting is fine if transformers then assumes the wanted value.
  void expect(const char* name, const Json& wanted, bool preset) const {
    const bool there = json_.contains(name) && !json_[name].is_null();
    if (there ? json_[name] != wanted : !preset) {
      refuse(
          std::string(name) + " " + wanted.dump(),
          there ? json_[name].dump() : "none");
    }
  }

  // The setting, or `preset` if it is missing or null.
  Json value(const char* name, const Json& preset) const {
    return json_.contains(name) && !json_[name].is_null() ? json_[name]
                                                          : preset;
  }

  double number(const char* name, double preset) const {
    const auto found = value(name, preset);
    if (!found.is_number()) {
      refuse(std::string(name) + ", a number", found.dump());
    }
    return found.get<double>();
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
  settings.expect("scale_attn_weights", true, true);
  TrainConfig config;
  config.layers = settings.count("n_layer");
  config.width = settings.count("n_embd");
  config.heads = settings.count("n_head");
  config.seq = settings.count("n_positions");
  config.vocab = settings.count("vocab_size");
  settings.expect("n_inner", 4 * config.width, true);
  return config;
}

Json rope_number(
    const Settings& settings,
    const Json& rope,
    const char* name,
    const Json& preset = {}) {
  const auto found = rope.value(name, preset);
  if (!found.is_number()) {
    settings.refuse(
        std::string("rope_parameters.") + name + ", a number", found.dump());
  }
  return found;
}

void expect_plain_yarn(const Settings& settings, const Json& rope) {
  for (const char* name : {"mscale", "mscale_all_dim"}) {
    if (!rope.value(name, Json()).is_null()) {
      settings.refuse(
          std::string("rope_parameters without ") + name, rope[name].dump());
    }
  }
  if (rope.value("truncate", Json(true)) != true) {
    settings.refuse("rope_parameters.truncate true", rope["truncate"].dump());
  }
}

// In the form of --rope-scaling.
std::string rope_scaling_of(
    const Settings& settings, const Json& rope, std::int64_t positions) {
  const auto number = [&](const char* name, const Json& preset = {}) {
    return rope_number(settings, rope, name, preset).dump();
  };
  const auto kind =
      rope.value("rope_type", rope.value("type", Json("default")));
  if (kind == "default") {
    return "none";
  }
  if (kind == "linear") {
    return "linear:" + number("factor");
  }
  if (kind == "llama3") {
    return "llama3:" + number("factor") + "," + number("low_freq_factor") +
        "," + number("high_freq_factor") + "," +
        number("original_max_position_embeddings");
  }
  if (kind != "yarn") {
    settings.refuse(
        "a rope_type of default, linear, llama3 or yarn", kind.dump());
  }
  expect_plain_yarn(settings, rope);
  const bool given = !rope.value("attention_factor", Json()).is_null();
  return "yarn:" + number("factor") + "," + number("beta_fast", 32.0) + "," +
      number("beta_slow", 1.0) + "," +
      number("original_max_position_embeddings", positions) +
      (given ? "," + number("attention_factor") : "");
}

// Version 5 of transformers writes "rope_parameters"; older ones write "rope_theta" and
// "rope_scaling", whose kind was at first called "type".
void take_rope(const Settings& settings, TrainConfig& config) {
  auto rope =
      settings.value("rope_parameters", settings.value("rope_scaling", {}));
  rope = rope.is_object() ? rope : Json::object();
  const auto theta = settings.number("rope_theta", config.rope_theta);
  config.rope_theta =
      rope_number(settings, rope, "rope_theta", theta).get<double>();
  config.rope_scaling = rope_scaling_of(settings, rope, config.seq);
  const auto share = rope_number(settings, rope, "partial_rotary_factor", 1.0);
  if (share != 1.0) {
    settings.refuse("rope_parameters.partial_rotary_factor 1.0", share.dump());
  }
}

// In Qwen some layers may have one, which sherd has only for all of them; in Mistral all have it.
std::int64_t sliding_window_of(const Settings& settings) {
  const auto family = settings.family();
  const bool qwen = family == "qwen2" || family == "qwen3";
  const bool slides = family == "mistral" ||
      (qwen && settings.value("use_sliding_window", false) == true);
  if (family != "mistral") {
    settings.expect("use_sliding_window", slides, true);
    if (slides) {
      settings.expect("max_window_layers", 0, false);
    }
    const std::string wanted = slides ? "sliding_attention" : "full_attention";
    for (const auto& kind : settings.value("layer_types", Json::array())) {
      if (kind != wanted) {
        settings.refuse("layer_types of " + wanted, kind.dump());
      }
    }
  }
  if (!slides) {
    return 0;
  }
  return settings.has("sliding_window") ? settings.count_or("sliding_window", 0)
                                        : 4096;
}

TrainConfig llama_of(const Settings& settings, const Family& family) {
  settings.expect("hidden_act", "silu", true);
  settings.expect("attention_bias", false, true);
  settings.expect("mlp_bias", false, true);
  TrainConfig config;
  config.model = family.name;
  config.layers = settings.count("num_hidden_layers");
  config.width = settings.count("hidden_size");
  config.heads = settings.count("num_attention_heads");
  config.kv_heads = settings.count_or(
      "num_key_value_heads",
      family.kv_heads_preset > 0 ? family.kv_heads_preset : config.heads);
  const auto head_width = settings.count_or("head_dim", family.head_dim_preset);
  const bool usual = head_width * config.heads == config.width;
  config.head_width = usual ? 0 : head_width;
  config.intermediate = settings.count("intermediate_size");
  config.seq = settings.count("max_position_embeddings");
  config.vocab = settings.count("vocab_size");
  config.norm_epsilon = settings.number("rms_norm_eps", config.norm_epsilon);
  config.tied_head = settings.value("tie_word_embeddings", false) == true;
  config.sliding_window = sliding_window_of(settings);
  take_rope(settings, config);
  return config;
}

}  // namespace

TrainConfig parse_hugging_face_config(
    const std::string& text, const std::string& path) {
  const Settings settings(text, path);
  if (settings.family() == "gpt2") {
    return gpt2_of(settings);
  }
  if (const auto* family = family_named(settings.family())) {
    return llama_of(settings, *family);
  }
  settings.refuse(
      "model_type gpt2, llama, mistral, qwen2 or qwen3", settings.family());
}

std::string name_from_hugging_face(
    const TrainConfig& config, const std::string& name) {
  if (config.model != "gpt") {
    const bool left_out = name.ends_with(".rotary_emb.inv_freq") ||
        (config.tied_head && name == "lm_head.weight");
    return left_out ? "" : name;
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
  expect_no_window_of_llama(config);
  auto json = config.model == "gpt" ? gpt2(config, vocabulary)
                                    : llama(config, vocabulary);
  // The vocabulary is bytes, or whatever ids the data had; none of them is special.
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["torch_dtype"] = "float32";
  return json.dump(2) + "\n";
}

std::string hugging_face_name(
    const TrainConfig& config, const std::string& name) {
  const bool inside = config.model == "gpt" && !name.starts_with("lm_head.");
  return inside ? "transformer." + name : name;
}

}  // namespace sherd::tools
