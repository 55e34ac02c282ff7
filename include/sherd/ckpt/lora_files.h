// SPDX-License-Identifier: Apache-2.0
//
// Adapters in the format of Hugging Face's PEFT: a folder with adapter_config.json and
// adapter_model.safetensors, in which "base_model.model." precedes each parameter's name. Names and
// fields are those that PeftModel.from_pretrained() reads and save_pretrained() writes. Thread
// rule: one thread.
#pragma once

#include <string>
#include <sherd/models/lora.h>
#include <sherd/optim/named_parameters.h>
#include <sherd/world/world.h>

namespace sherd {

// Collective, between two steps. Saves the adapters among the parameters of fully_shard or
// replicate. Rank 0 makes the folder and replaces each of the two files as a whole. Memory on rank
// 0: twice all adapters. Throws Error, on every rank, if there are no adapters, if the LoRA rank of
// one differs from the config, or if a file cannot be written.
void save_lora(
    const World& world,
    const std::string& folder,
    const NamedParameters& parameters,
    const models::LoraConfig& config);

// Reads the folder's adapter_config.json. Throws Error if the file cannot be read or is not of type
// LORA, and for settings that sherd's adapters do not support (use_dora, bias, modules_to_save,
// ...), naming the field and its value; also for a field that sherd does not know, unless its value
// is null, false or empty.
models::LoraConfig read_lora_config(const std::string& folder);

// Collective, between two steps. Reads the folder's adapters into those among the parameters,
// converting between dtypes if they differ, and publishes them. Throws Error, on every rank, if a
// name is only in the file or only among the parameters, if shapes differ, or if a file is missing
// or damaged; the adapters are then partly written. Mirrors PEFT's load_adapter().
void load_lora(
    const World& world,
    const std::string& folder,
    const NamedParameters& parameters);

}  // namespace sherd
