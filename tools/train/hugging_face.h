// SPDX-License-Identifier: Apache-2.0
//
// How Hugging Face's transformers describes and names a model that `sherd train`
// has trained. Pure functions. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include "train/config.h"

namespace sherd::tools {

// config.json of GPT2LMHeadModel, LlamaForCausalLM, MistralForCausalLM,
// Qwen2ForCausalLM or Qwen3ForCausalLM, which every version of transformers that
// knows the model reads. REQUIRES: what the configuration leaves open (kv_heads,
// intermediate) is filled in for Llama and its likes.
std::string hugging_face_config(
    const TrainConfig& config, std::int64_t vocabulary);

// What a config.json describes; `path` is for messages. The rest is as a
// TrainConfig is by itself. Settings that are missing mean what transformers
// takes them for. Throws Error for a model that sherd has no equal of, naming the
// setting.
TrainConfig parse_hugging_face_config(
    const std::string& text, const std::string& path);

// Sherd's name for one of its tensors; empty: it is no parameter (a mask, a head
// that is the embedding).
std::string name_from_hugging_face(
    const TrainConfig& config, const std::string& name);

// The name that Hugging Face gives to this parameter of the model.
std::string hugging_face_name(
    const TrainConfig& config, const std::string& name);

}  // namespace sherd::tools
