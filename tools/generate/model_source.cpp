// SPDX-License-Identifier: Apache-2.0
#include "generate/model_source.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include <sherd/data/tokenizer.h>
#include "base/replace_file.h"
#include "base/text.h"
#include "refuse.h"
#include "text_file.h"
#include "train/hugging_face.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kByteVocabulary = 256;
constexpr const char* kExpected =
    "a run or checkpoint of sherd train, or a folder with config.json and "
    "model.safetensors of a Hugging Face model";

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

// The folder with the tokenizer of a checkpoint: its own or, for RUN/checkpoints/step-N, that of
// its run.
std::string tokenizer_folder(const std::string& checkpoint) {
  std::error_code failure;
  const auto own = fs::canonical(checkpoint, failure);
  if (failure) {  // The run may have removed it just now.
    throw Error(
        checkpoint + ": expected a checkpoint, found: " + failure.message(),
        ErrorCode::kUnavailable);
  }
  const auto all = own.parent_path();
  const bool in_run = all.filename() == "checkpoints";
  return in_run && data::tokenizer_file(own.string()).empty()
      ? all.parent_path().string()
      : own.string();
}

// Adds eos_token_id of a file, if the file exists: one id, several or none.
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

}  // namespace

bool ModelSource::reads_bytes() const {
  return trained_on_bytes || (vocabulary > 0 && vocabulary <= kByteVocabulary);
}

void keep_stop_ids(
    const std::string& folder, const std::vector<std::int64_t>& ids) {
  const auto path = folder + "/generation_config.json";
  std::vector<std::int64_t> kept;
  add_stop_ids(path, kept);
  const auto before = kept.size();
  for (const auto id : ids) {
    if (std::ranges::find(kept, id) == kept.end()) {
      kept.push_back(id);
    }
  }
  if (kept.size() > before) {
    auto json = exists(path) ? read_json(path) : Json::object();
    json["eos_token_id"] = kept;
    replace_file(path, json.dump(2) + "\n").throw_if_failed();
  }
}

namespace {

void check_section(
    const std::string& from,
    const CheckpointContent& content,
    const std::string& wanted) {
  if (!has_section(content, wanted)) {
    refuse(
        from,
        wanted == kAveragedWeights
            ? "the averaged weights of a run with --ema (--weights ema)"
            : "weights in section " + wanted,
        "none in " + content.folder);
  }
}

// Throws Error for a checkpoint that `sherd train` has not made.
ModelSource of_checkpoint(
    const std::string& from,
    const std::string& folder,
    const std::string& section) {
  const auto content = checkpoint_content(folder);
  const auto value = [&](const char* name) -> const std::string& {
    const auto found = content.values.find(name);
    if (found == content.values.end()) {
      throw Error(
          content.folder + ": expected a checkpoint of sherd train, found no " +
          name + " in it");
    }
    return found->second;
  };
  const auto& vocabulary = value("train.vocabulary");
  const auto number = parse_number<std::int64_t>(vocabulary);
  if (!number) {
    refuse(
        content.folder, "train.vocabulary, a number", "'" + vocabulary + "'");
  }
  const auto config = make_config({}, content.folder, value("train.config"));
  const auto tokens = content.values.find(kTrainTokens);
  check_section(from, content, section);
  ModelSource source{
      .from = from,
      .weights = folder,
      .section = section,
      .folder = tokenizer_folder(folder),
      .config = config,
      .vocabulary = *number,
      .trained_on_bytes =
          tokens != content.values.end() && tokens->second == kByteTokens};
  add_stop_ids(source.folder + "/generation_config.json", source.stop_ids);
  return source;
}

void expect_folder(const std::string& from) {
  std::error_code ignored;
  if (!fs::is_directory(from, ignored)) {
    refuse(from, kExpected, exists(from) ? "a file" : "no such folder");
  }
}

// model.safetensors, or the files that its index lists.
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

}  // namespace

ModelSource find_model(const std::string& from, const std::string& weights) {
  if (weights != kModelWeights && weights != kAveragedWeights) {
    throw Error("--weights: expected model or ema, found '" + weights + "'");
  }
  expect_folder(from);
  if (checkpoint_at(from)) {
    ModelSource source;
    read_checkpoint(from, [&](const std::string& checkpoint) {
      source = of_checkpoint(from, checkpoint, weights);
    });
    return source;
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
  if (weights != kModelWeights) {
    refuse(
        from, "a run or checkpoint with --weights " + weights,
        "a Hugging Face model, which has one set of weights");
  }
  ModelSource source{
      .from = from,
      .weights = from,
      .files = hugging_face_weights(from),
      .folder = from};
  source.config = parse_hugging_face_config(text_in(path), path);
  source.vocabulary = source.config.vocab;
  add_stop_ids(path, source.stop_ids);
  add_stop_ids(from + "/generation_config.json", source.stop_ids);
  return source;
}

ModelSource find_initial_model(const TrainConfig& config) {
  const auto& path = config.init_from;
  try {
    const auto checkpoint = checkpoint_at(path);
    const bool known = !checkpoint ||
        checkpoint_content(*checkpoint).values.contains("train.config");
    return known ? find_model(path)
                 : ModelSource{
                       .from = path,
                       .weights = *checkpoint,
                       .folder = *checkpoint,
                       .config = config,
                       .vocabulary = config.vocab};
  } catch (const Error& error) {
    throw Error(std::string("--init-from: ") + error.what());
  }
}

std::optional<std::string> checkpoint_at(const std::string& path) {
  if (exists(path + "/checkpoint.json")) {
    return path;
  }
  auto newest = newest_checkpoint(path);
  return newest ? newest : newest_checkpoint(path + "/checkpoints");
}

std::string read_checkpoint(
    const std::string& path,
    const std::function<void(const std::string& checkpoint)>& read) {
  auto checkpoint = checkpoint_at(path).value_or(path);
  for (;;) {
    try {
      read(checkpoint);
      return checkpoint;
    } catch (const Error&) {
      const auto next = replacement_of(checkpoint, path);
      if (!next) {
        throw;
      }
      checkpoint = *next;
    }
  }
}

std::optional<std::string> replacement_of(
    const std::string& before, const std::string& path) {
  auto now = exists(before) ? std::nullopt : checkpoint_at(path);
  return now == before ? std::nullopt : now;
}

bool has_section(const CheckpointContent& content, const std::string& name) {
  return std::ranges::find(
             content.tensors, name, &CheckpointContent::Tensor::section) !=
      content.tensors.end();
}

void expect_tokenizer_of(
    const ModelSource& source, const std::string& path, std::uint64_t digest) {
  const auto file = data::tokenizer_file(source.folder);
  const bool unknown = file.empty() && !source.reads_bytes();
  const auto own = data::tokenizer_digest(source.folder);
  if (digest == 0 || unknown || digest == own) {
    return;
  }
  const auto tokens_of = [](const std::string& name, std::uint64_t tokenizer) {
    return tokenizer == data::bytes_digest()
        ? std::string("bytes")
        : "tokens of " + name + " (digest " + std::to_string(tokenizer) + ")";
  };
  refuse(
      path,
      tokens_of(file, own) + ", which the model in " + source.weights +
          " reads",
      tokens_of("another tokenizer", digest));
}

}  // namespace sherd::tools
