// SPDX-License-Identifier: Apache-2.0
#include <sherd/ckpt/lora_files.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>
#include <sherd/ckpt/checkpoint.h>

#include "base/check.h"
#include "base/replace_file.h"
#include "ckpt/dtypes.h"
#include "ckpt/safetensors.h"
#include "ckpt/save_protocol.h"

namespace sherd {
namespace {

using models::LoraConfig;
using Json = nlohmann::ordered_json;

constexpr const char* kPrefix = "base_model.model.";

std::string config_path(const std::string& folder) {
  return folder + "/adapter_config.json";
}

std::string tensors_path(const std::string& folder) {
  return folder + "/adapter_model.safetensors";
}

// The adapters among the parameters.
NamedParameters adapters_of(NamedParameters parameters) {
  const auto is_other = [](const auto& item) {
    return !models::is_lora_parameter(item.name);
  };
  std::erase_if(parameters.items, is_other);
  std::erase_if(parameters.state_only, is_other);
  std::erase_if(parameters.whole.items, is_other);
  return parameters;
}

std::string json_of(const LoraConfig& config) {
  const auto base =
      config.base_model.empty() ? Json() : Json(config.base_model);
  const Json json = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base},
      {"r", config.rank},
      {"lora_alpha", config.alpha},
      {"target_modules", config.target_modules},
      {"lora_dropout", 0.0},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"modules_to_save", nullptr}};
  return json.dump(2) + "\n";
}

// The content of a file of these tensors.
std::string file_of(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<ckpt::TensorInfo> infos;
  for (const auto& [name, tensor] : tensors) {
    infos.push_back(
        {.name = name,
         .dtype = ckpt::name_of(tensor.scalar_type()),
         .shape = tensor.sizes().vec()});
  }
  auto content = ckpt::header_bytes(infos, {{"format", "pt"}});
  for (const auto& [name, tensor] : tensors) {
    const auto here = tensor.cpu();
    content.append(
        static_cast<const char*>(here.const_data_ptr()), here.nbytes());
  }
  return content;
}

// Fields that may have any value, because the reader checks them itself or because they do not
// change what adapters compute.
constexpr auto kFieldsWithAnyValue = std::to_array<std::string_view>(
    {"peft_type", "r", "lora_alpha", "target_modules",
     "base_model_name_or_path", "bias", "init_lora_weights", "peft_version",
     "task_type", "auto_mapping", "revision", "lora_dropout", "inference_mode",
     "megatron_core", "qalora_group_size"});

// Whether this value means, in PEFT, that a feature is not used.
bool is_off(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
      (value.is_string() && value.get<std::string>().empty()) ||
      (value.is_structured() && value.empty());
}

bool is_list_of_names(const Json& value) {
  const auto is_name = [](const Json& item) { return item.is_string(); };
  return value.is_array() && std::ranges::all_of(value, is_name);
}

// Reads an adapter_config.json.
class ConfigReader {
 public:
  // Both must outlive it.
  ConfigReader(const Json& json, const std::string& path)
      : json_(json), path_(path) {
    SHERD_CHECK(
        json.is_object(), "[ckpt] ", path, ": expected an object, found ",
        json.type_name());
  }

  LoraConfig read() const {
    const auto type = value("peft_type");
    expect(type == "LORA", "peft_type", "\"LORA\"");
    check_supported();
    const auto rank = value("r");
    expect(
        rank.is_number_integer() && rank.get<std::int64_t>() >= 1, "r",
        "to be an integer of at least 1");
    const auto alpha = value("lora_alpha");
    expect(alpha.is_number(), "lora_alpha", "to be a number");
    const auto targets = value("target_modules");
    expect(
        is_list_of_names(targets), "target_modules", "to be a list of names");
    const auto base = value("base_model_name_or_path");
    expect(
        base.is_null() || base.is_string(), "base_model_name_or_path",
        "to be a string or null");
    LoraConfig config;
    config.rank = rank.get<std::int64_t>();
    config.alpha = alpha.get<double>();
    config.target_modules = targets.get<std::vector<std::string>>();
    config.base_model = base.is_null() ? "" : base.get<std::string>();
    return config;
  }

 private:
  // Null if there is no such field.
  Json value(const std::string& field) const {
    return json_.value(field, Json());
  }

  void expect(
      bool holds, const std::string& field, const char* expected) const {
    SHERD_CHECK(
        holds, "[ckpt] ", path_, ": expected ", field, " ", expected,
        ", found ", json_.contains(field) ? value(field).dump() : "none");
  }

  // Checks that nothing asks for what sherd's adapters do not support.
  void check_supported() const {
    const auto bias = value("bias");
    expect(bias.is_null() || bias == "none", "bias", "\"none\"");
    // Other initialisations change the weights of the base, too.
    const auto first = value("init_lora_weights");
    expect(
        first.is_null() || first.is_boolean() || first == "gaussian",
        "init_lora_weights", "to be a boolean or \"gaussian\"");
    for (const auto& item : json_.items()) {
      const auto& field = item.key();
      const auto* const known =
          std::ranges::find(kFieldsWithAnyValue, std::string_view(field));
      expect(
          known != kFieldsWithAnyValue.end() || is_off(item.value()), field,
          "to be null, false or empty");
    }
  }

  const Json& json_;
  const std::string& path_;
};

// Done by rank 0 with all adapters.
void check_and_write(
    const std::string& folder,
    const std::map<std::string, at::Tensor>& tensors,
    const LoraConfig& config) {
  SHERD_CHECK(
      !tensors.empty(),
      "[ckpt] expected adapters among the parameters, found none; "
      "add_lora() comes before fully_shard()");
  for (const auto& [name, tensor] : tensors) {
    SHERD_CHECK(
        !name.ends_with(".lora_A.weight") || tensor.size(0) == config.rank,
        "[ckpt] expected adapters of the config's rank ", config.rank,
        ", found ", name.substr(std::strlen(kPrefix)), " of rank ",
        tensor.size(0));
  }
  std::error_code failure;
  std::filesystem::create_directories(folder, failure);
  SHERD_CHECK_AS(
      kUnavailable, !failure, "[ckpt] cannot make ", folder, ": ",
      failure.message());
  replace_file(tensors_path(folder), file_of(tensors)).throw_if_failed();
  replace_file(config_path(folder), json_of(config)).throw_if_failed();
}

}  // namespace

void save_lora(
    const World& world,
    const std::string& folder,
    const NamedParameters& parameters,
    const LoraConfig& config) {
  CheckpointState state;
  state.add(adapters_of(parameters));
  std::map<std::string, at::Tensor> tensors;
  gather_full_state(
      world, state,
      [&](const std::string&, const std::string& name,
          const at::Tensor& tensor) {
        tensors.emplace(kPrefix + name, tensor.contiguous());
      });
  on_all_or_none(ckpt::ranks_of(world), "saving adapters", [&] {
    if (world.rank() == 0) {
      check_and_write(folder, tensors, config);
    }
  });
}

LoraConfig read_lora_config(const std::string& folder) {
  const auto path = config_path(folder);
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  SHERD_CHECK_AS(
      kUnavailable, file.good(), "[ckpt] cannot read ", path,
      "; expected a folder of adapters in PEFT's format");
  try {
    const auto json = Json::parse(text.str());
    return ConfigReader(json, path).read();
  } catch (const nlohmann::json::exception& error) {
    throw Error(str("[ckpt] ", path, ": ", error.what()));
  }
}

void load_lora(
    const World& world,
    const std::string& folder,
    const NamedParameters& parameters) {
  CheckpointState state;
  state.add(adapters_of(parameters));
  load_tensor_files(
      world, {tensors_path(folder)}, state,
      {.rename = [](const std::string& name) {
        return name.starts_with(kPrefix) ? name.substr(std::strlen(kPrefix))
                                         : name;
      }});
}

}  // namespace sherd
