// SPDX-License-Identifier: Apache-2.0
#include "generate/model_source.h"

#include <filesystem>
#include <set>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include "text_file.h"
#include "train/hugging_face.h"
#include "train/saved_model.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kExpected =
    "a run or checkpoint of sherd train, or a folder with config.json and "
    "model.safetensors of a Hugging Face model";

[[noreturn]] void refuse(
    const std::string& path,
    const std::string& expected,
    const std::string& found) {
  throw Error(path + ": expected " + expected + ", found " + found);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Json read_json(const std::string& path) {
  const auto text = text_in(path);
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    refuse(
        path, "a JSON object",
        json.is_discarded()
            ? std::to_string(text.size()) + " bytes that are no JSON"
            : json.type_name());
  }
  return json;
}

// The folder with the tokenizer of a checkpoint: its own, or that of its run,
// two above it.
std::string tokenizer_folder(const std::string& checkpoint) {
  const auto own = fs::absolute(checkpoint).lexically_normal();
  for (const auto& folder : {own, own.parent_path().parent_path()}) {
    if (exists((folder / "tokenizer.json").string())) {
      return folder.string();
    }
  }
  return checkpoint;
}

// Adds eos_token_id of a file, if it is there: one id, several or none.
void add_stop_ids(const std::string& path, std::vector<std::int64_t>& ids) {
  if (!exists(path)) {
    return;
  }
  const auto found = read_json(path).value("eos_token_id", Json());
  for (const auto& id : found.is_array() ? found : Json::array({found})) {
    if (id.is_number_integer()) {
      ids.push_back(id.get<std::int64_t>());
    }
  }
}

ModelSource of_checkpoint(const std::string& folder) {
  const auto saved = saved_model(checkpoint_content(folder));
  ModelSource source{
      .weights = folder,
      .folder = tokenizer_folder(folder),
      .config = saved.config,
      .vocabulary = saved.vocabulary};
  add_stop_ids(source.folder + "/generation_config.json", source.stop_ids);
  return source;
}

void expect_folder(const std::string& from) {
  std::error_code ignored;
  if (!fs::is_directory(from, ignored)) {
    refuse(from, kExpected, exists(from) ? "a file" : "no such folder");
  }
}

}  // namespace

std::vector<std::string> hugging_face_weights(const std::string& folder) {
  const auto single = folder + "/model.safetensors";
  const auto index = single + ".index.json";
  if (!exists(index)) {
    if (!exists(single)) {
      refuse(
          folder, "model.safetensors",
          exists(folder + "/pytorch_model.bin")
              ? "pytorch_model.bin alone, which save_pretrained() of "
                "transformers converts"
              : "none");
    }
    return {single};
  }
  std::set<std::string> files;
  const auto json = read_json(index);
  try {
    for (const auto& [name, file] : json.at("weight_map").items()) {
      const auto plain = fs::path(file.get<std::string>());
      files.insert(folder + "/" + plain.filename().string());
    }
  } catch (const Json::exception&) {
    refuse(index, "a weight_map of file names", "none");
  }
  return {files.begin(), files.end()};
}

ModelSource find_model(const std::string& from) {
  expect_folder(from);
  if (const auto checkpoint = checkpoint_at(from)) {
    return of_checkpoint(*checkpoint);
  }
  const auto path = from + "/config.json";
  if (!exists(path)) {
    refuse(
        from, kExpected,
        "a folder without checkpoints and without config.json");
  }
  if (!read_json(path).contains("model_type")) {
    refuse(
        from, kExpected,
        "a run without checkpoints (sherd train --save-every N makes them)");
  }
  ModelSource source{
      .weights = from, .files = hugging_face_weights(from), .folder = from};
  source.config = parse_hugging_face_config(text_in(path), path);
  source.vocabulary = source.config.vocab;
  add_stop_ids(path, source.stop_ids);
  add_stop_ids(from + "/generation_config.json", source.stop_ids);
  return source;
}

}  // namespace sherd::tools
