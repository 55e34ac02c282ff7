// SPDX-License-Identifier: Apache-2.0
//
// LoraConfig describes low-rank adapters (LoRA, arXiv 2106.09685). Beside the frozen weight W of a
// projection, x W^T + alpha / rank (x A^T) B^T, only A [rank, in] and B [out, rank] are trained.
// Llama::add_lora() adds adapters to a model; sherd/ckpt/lora_files.h reads and writes files of
// them in PEFT's format. A value.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::models {

// The fields are those of PEFT's LoraConfig.
struct LoraConfig {
  std::int64_t rank = 8;  // PEFT's r; at least 1.
  double alpha = 8.0;     // PEFT's lora_alpha.
  // The projections that get adapters: the last part of a module's name, or more of it, as in
  // "self_attn.q_proj".
  std::vector<std::string> target_modules = {"q_proj", "v_proj"};
  // Tells those who load the adapters which base model they belong to. PEFT's
  // base_model_name_or_path.
  std::string base_model = {};
};

// Whether this is the name of a parameter of an adapter, as "...q_proj.lora_A.weight".
inline bool is_lora_parameter(std::string_view name) {
  return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
}

}  // namespace sherd::models
