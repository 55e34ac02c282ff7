// SPDX-License-Identifier: Apache-2.0
//
// sherd-checkpoint, which `sherd checkpoint` becomes: looks at checkpoints and
// makes one file of each section.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <vector>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include <sherd/ckpt/checkpoint.h>
#include "text_file.h"
#include "train/config.h"
#include "train/hugging_face.h"

namespace sherd::tools {
namespace {

constexpr int kUsageError = 2;

using Json = nlohmann::ordered_json;

// A checkpoint, a folder of them or a run: the newest there.
std::string newest_in(const std::string& path) {
  for (const auto& folder : {path, path + "/checkpoints"}) {
    const auto newest = newest_checkpoint(folder);
    if (newest) {
      return *newest;
    }
  }
  return path;  // What it is not is said when it is opened.
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::string bytes_text(std::int64_t bytes) {
  char text[32];
  std::snprintf(
      text, sizeof text, "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

Json json_of(const CheckpointContent& content) {
  Json json = {{"folder", content.folder},         {"step", content.step},
               {"world_size", content.world_size}, {"files", content.files},
               {"bytes", content.bytes},           {"values", content.values}};
  json["tensors"] = Json::array();
  for (const auto& tensor : content.tensors) {
    json["tensors"].push_back(
        {{"section", tensor.section},
         {"name", tensor.name},
         {"dtype", tensor.dtype},
         {"shape", tensor.shape},
         {"parts", tensor.parts}});
  }
  return json;
}

void inspect(const std::string& path, bool json) {
  const auto content = checkpoint_content(newest_in(path));
  if (json) {
    std::puts(json_of(content).dump(1).c_str());
    return;
  }
  std::printf(
      "%s: step %lld, saved by %d rank%s, %lld files, %s\n",
      content.folder.c_str(), static_cast<long long>(content.step),
      content.world_size, content.world_size == 1 ? "" : "s",
      static_cast<long long>(content.files), bytes_text(content.bytes).c_str());
  for (const auto& [name, value] : content.values) {
    std::printf("  %s = %s\n", name.c_str(), value.c_str());
  }
  for (const auto& tensor : content.tensors) {
    std::printf(
        "  %s  %s  %s %s\n", tensor.section.c_str(), tensor.name.c_str(),
        tensor.dtype.c_str(), text_of(tensor.shape).c_str());
  }
}

void verify(const std::string& path, bool json) {
  const auto folder = newest_in(path);
  const auto bytes = verify_checkpoint(folder);
  if (json) {
    std::puts(Json({{"folder", folder}, {"bytes", bytes}}).dump().c_str());
  } else {
    std::printf(
        "%s: complete, %s of tensors as they were saved\n", folder.c_str(),
        bytes_text(bytes).c_str());
  }
}

void merge(const std::string& path, const std::string& to, bool json) {
  const auto folder = newest_in(path);
  const auto files = merge_checkpoint(folder, to);
  if (json) {
    std::puts(Json({{"folder", folder}, {"files", files}}).dump().c_str());
    return;
  }
  for (const auto& file : files) {
    std::printf("%s\n", file.c_str());
  }
}

std::string value_in(const CheckpointContent& content, const char* name) {
  const auto found = content.values.find(name);
  if (found == content.values.end()) {
    throw Error(
        content.folder + ": expected a checkpoint of sherd train, found no " +
        name + " in it");
  }
  return found->second;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) {
    throw Error(
        path + ": expected a file that can be written, found none",
        ErrorCode::kUnavailable);
  }
}

// As transformers' from_pretrained() takes it.
void export_to(const std::string& path, const std::string& to, bool json) {
  const auto content = checkpoint_content(newest_in(path));
  const auto config =
      make_config({}, content.folder, value_in(content, "train.config"));
  const auto vocabulary = std::stoll(value_in(content, "train.vocabulary"));
  auto files = merge_checkpoint(
      content.folder, to,
      {.section = "model", .rename = [&](const std::string& name) {
         return hugging_face_name(config, name);
       }});
  files.push_back(to + "/config.json");
  write_text(files.back(), hugging_face_config(config, vocabulary));
  if (json) {
    std::puts(
        Json({{"folder", content.folder}, {"files", files}}).dump().c_str());
    return;
  }
  for (const auto& file : files) {
    std::printf("%s\n", file.c_str());
  }
}

std::string text_in(const std::string& path) {
  const auto text = text_of_file(path);
  if (!text) {
    throw Error(
        path + ": expected a file that can be read, found none",
        ErrorCode::kUnavailable);
  }
  return *text;
}

// model.safetensors, or those that its index lists.
std::vector<std::string> weights_in(const std::string& folder) {
  const auto index = folder + "/model.safetensors.index.json";
  if (!std::filesystem::exists(index)) {
    return {folder + "/model.safetensors"};
  }
  std::set<std::string> files;
  try {
    const auto json = Json::parse(text_in(index));
    for (const auto& [name, file] : json.at("weight_map").items()) {
      const auto plain = std::filesystem::path(file.get<std::string>());
      files.insert(folder + "/" + plain.filename().string());
    }
  } catch (const Json::exception&) {
    throw Error(index + ": expected a weight_map of file names, found none");
  }
  return {files.begin(), files.end()};
}

// As transformers' save_pretrained() leaves it.
void import_from(const std::string& from, const std::string& run, bool json) {
  const auto path = from + "/config.json";
  auto config = parse_hugging_face_config(text_in(path), path);
  config.run = run;
  config.save_every = 100;
  const auto names = import_checkpoint(
      weights_in(from), run + "/checkpoints",
      {.values =
           {{"train.config", to_json(config, {})},
            {"train.vocabulary", std::to_string(config.vocab)}},
       .rename = [&](const std::string& name) {
         return name_from_hugging_face(config, name);
       }});
  write_text(run + "/config.json", to_json(config, {}));
  if (json) {
    std::puts(Json({{"run", run}, {"tensors", names.size()}}).dump().c_str());
    return;
  }
  std::printf(
      "%s: %zu tensors; train on with\n"
      "sherd train --config %s/config.json --data PATH\n",
      run.c_str(), names.size(), run.c_str());
}

int checkpoint_command(int argc, char** argv) {
  CLI::App app("Look at checkpoints and convert them", "sherd checkpoint");
  app.require_subcommand(1);
  std::string path;
  std::string to;
  bool json = false;
  const auto add = [&](const char* name, const char* help) {
    auto* command = app.add_subcommand(name, help);
    command
        ->add_option(
            "PATH", path, "A checkpoint, or a run: the newest one in it")
        ->required();
    command->add_flag("--json", json, "Print JSON");
    return command;
  };
  const auto* inspect_app =
      add("inspect", "What is in it: step, values, tensors");
  const auto* verify_app =
      add("verify", "Read all of it and compare checksums");
  auto* merge_app =
      add("merge",
          "Write whole tensors: one safetensors file of each section, e.g.\n"
          "FOLDER/model.safetensors, for any program that reads those");
  auto* export_app =
      add("export",
          "Write the model of a run of `sherd train` as Hugging Face's "
          "transformers\n"
          "loads it: config.json and model.safetensors");
  for (auto* command : {merge_app, export_app}) {
    command->add_option("FOLDER", to, "New, or empty")->required();
  }
  auto* import_app = app.add_subcommand(
      "import",
      "Make a run of a GPT-2 or Llama that transformers has saved, for\n"
      "`sherd train` to go on with");
  import_app->add_option("FOLDER", path, "Of config.json and safetensors")
      ->required();
  import_app->add_option("RUN", to, "The run's folder")->required();
  import_app->add_flag("--json", json, "Print JSON");
  try {
    app.parse(argc, argv);
    if (inspect_app->parsed()) {
      inspect(path, json);
    } else if (verify_app->parsed()) {
      verify(path, json);
    } else if (import_app->parsed()) {
      import_from(path, to, json);
    } else if (export_app->parsed()) {
      export_to(path, to, json);
    } else {
      merge(path, to, json);
    }
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return app.exit(error);
    }
    std::fprintf(
        stderr, "sherd checkpoint: %s (see sherd checkpoint --help)\n",
        error.what());
    return kUsageError;
  } catch (const Error& error) {
    std::fprintf(stderr, "sherd checkpoint: %s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  try {
    return sherd::tools::checkpoint_command(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sherd checkpoint: %s\n", error.what());
    return 1;
  }
}
