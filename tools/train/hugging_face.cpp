// SPDX-License-Identifier: Apache-2.0
#include "train/hugging_face.h"

#include <nlohmann/json.hpp>

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

}  // namespace

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
