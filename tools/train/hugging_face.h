// SPDX-License-Identifier: Apache-2.0
//
// How Hugging Face's transformers describes and names the models that `sherd train` has trained.
// Pure functions. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include "train/config.h"

namespace sherd::tools {

// The config.json of GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM or
// Qwen3ForCausalLM, readable by every version of transformers that knows the model. REQUIRES: for
// Llama and similar models, what the configuration may leave open (kv_heads, intermediate) is
// filled in.
// Throws Error for a Llama with a sliding window, which LlamaForCausalLM does not have.
std::string hugging_face_config(
    const TrainConfig& config, std::int64_t vocabulary);

// What a config.json describes; `path` is for messages. Everything else has the defaults of
// TrainConfig. Missing settings mean what transformers assumes for them. Throws Error, naming the
// setting, for a model that sherd cannot represent.
TrainConfig parse_hugging_face_config(
    const std::string& text, const std::string& path);

// Sherd's name for one of Hugging Face's tensors; empty if it is no parameter (a mask, a head that
// is the embedding).
std::string name_from_hugging_face(
    const TrainConfig& config, const std::string& name);

// The name that Hugging Face gives to this parameter of the model.
std::string hugging_face_name(
    const TrainConfig& config, const std::string& name);

}  // namespace sherd::tools
