// SPDX-License-Identifier: Apache-2.0
//
// sherd-checkpoint, executed by `sherd checkpoint`: inspects, compares and converts checkpoints.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sherd/base/error.h>
#include <sherd/base/run_main.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/data/tokenizer.h>
#include "base/replace_file.h"
#include "format_text.h"
#include "generate/load_model.h"
#include "generate/model_source.h"
#include "parse_arguments.h"
#include "terminal_text.h"
#include "tool_main.h"
#include "train/config.h"
#include "train/hugging_face.h"
#include "train/progress_bar.h"

namespace sherd::tools {
namespace {

constexpr int kDiffers = 1;

using Json = nlohmann::ordered_json;

// The command line's values.
struct Arguments {
  std::string path;
  std::string to;
  std::string weights = kModelWeights;
  bool archives = false;
  bool json = false;
};

// Paths and names that are not UTF-8 are printed with U+FFFD.
void print(const Json& json, int indent = -1) {
  std::puts(
      json.dump(indent, ' ', false, Json::error_handler_t::replace).c_str());
}

// For names and values of a checkpoint that somebody else may have made.
std::string shown(const std::string& text) {
  return printable_on_terminal(text);
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + "]";
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

int inspect(const Arguments& given) {
  CheckpointContent content;
  read_checkpoint(given.path, [&](const std::string& folder) {
    content = checkpoint_content(folder);
  });
  if (given.json) {
    print(json_of(content), 1);
    return 0;
  }
  std::printf(
      "%s: step %lld, saved by %s, %lld files, %s\n", content.folder.c_str(),
      static_cast<long long>(content.step),
      counted(content.world_size, "rank").c_str(),
      static_cast<long long>(content.files), bytes_text(content.bytes).c_str());
  for (const auto& [name, value] : content.values) {
    std::printf("  %s = %s\n", shown(name).c_str(), shown(value).c_str());
  }
  for (const auto& tensor : content.tensors) {
    std::printf(
        "  %s  %s  %s %s\n", shown(tensor.section).c_str(),
        shown(tensor.name).c_str(), tensor.dtype.c_str(),
        text_of(tensor.shape).c_str());
  }
  return 0;
}

int verify(const Arguments& given) {
  std::int64_t bytes = 0;
  const auto folder =
      read_checkpoint(given.path, [&](const std::string& checkpoint) {
        bytes = verify_checkpoint(checkpoint, progress_bar("verify"));
      });
  if (given.json) {
    print(Json({{"folder", folder}, {"bytes", bytes}}));
  } else {
    std::printf(
        "%s: complete, %s of tensors as they were saved\n", folder.c_str(),
        bytes_text(bytes).c_str());
  }
  return 0;
}

// What a command has written from the checkpoint in `folder`.
int print_files(
    const std::string& folder,
    const std::vector<std::string>& files,
    bool json) {
  if (json) {
    print(Json({{"folder", folder}, {"files", files}}));
    return 0;
  }
  for (const auto& file : files) {
    std::printf("%s\n", file.c_str());
  }
  return 0;
}

int merge(const Arguments& given) {
  std::vector<std::string> files;
  const auto folder =
      read_checkpoint(given.path, [&](const std::string& checkpoint) {
        files = merge_checkpoint(
            checkpoint, given.to,
            {.archives = given.archives, .progress = progress_bar("merge")});
      });
  return print_files(folder, files, given.json);
}

Json json_of(const CheckpointDifference& found) {
  Json json = {
      {"equal", found.equal},
      {"only_in_first", found.only_in_first},
      {"only_in_second", found.only_in_second},
      {"values", found.values}};
  json["changed"] = Json::array();
  for (const auto& tensor : found.changed) {
    json["changed"].push_back(
        {{"section", tensor.section},
         {"name", tensor.name},
         {"dtypes", tensor.dtypes},
         {"shapes", tensor.shapes},
         {"elements", tensor.elements},
         {"largest_difference", tensor.largest_difference}});
  }
  return json;
}

void print(const CheckpointDifference& found) {
  for (const auto& name : found.only_in_first) {
    std::printf("only in the first   %s\n", shown(name).c_str());
  }
  for (const auto& name : found.only_in_second) {
    std::printf("only in the second  %s\n", shown(name).c_str());
  }
  for (const auto& name : found.values) {
    std::printf("value               %s\n", shown(name).c_str());
  }
  for (const auto& tensor : found.changed) {
    std::printf(
        "changed             %s %s", shown(tensor.section).c_str(),
        shown(tensor.name).c_str());
    if (tensor.dtypes[0] != tensor.dtypes[1]) {
      std::printf(
          "  %s to %s", tensor.dtypes[0].c_str(), tensor.dtypes[1].c_str());
    }
    if (tensor.shapes[0] != tensor.shapes[1]) {
      std::printf(
          "  %s to %s", text_of(tensor.shapes[0]).c_str(),
          text_of(tensor.shapes[1]).c_str());
    } else {
      std::printf(
          "  %lld elements, by %.6g at most",
          static_cast<long long>(tensor.elements), tensor.largest_difference);
    }
    std::printf("\n");
  }
  std::printf(
      "%lld tensors with equal bits, %zu changed, %zu on one side\n",
      static_cast<long long>(found.equal), found.changed.size(),
      found.only_in_first.size() + found.only_in_second.size());
}

// Returns exit statuses like diff(1): 0 for no difference, 1 for some.
int diff(const Arguments& given) {
  CheckpointDifference found;
  read_checkpoint(given.path, [&](const std::string& first) {
    read_checkpoint(given.to, [&](const std::string& second) {
      found = compare_checkpoints(first, second, progress_bar("diff"));
    });
  });
  if (given.json) {
    print(json_of(found), 1);
  } else {
    print(found);
  }
  expect_printed();  // Here, since 1 would say that they differ.
  return found.none() ? 0 : kDiffers;
}

// The folder was empty before this command wrote there, and the next one expects it to be.
void remove_content(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder, ignored)) {
    std::filesystem::remove(entry.path(), ignored);
  }
}

// Written as transformers' from_pretrained() reads it.
int export_model(const Arguments& given) {
  const auto source = find_model(given.path, given.weights);
  if (!source.files.empty()) {
    throw Error(
        given.path +
        ": expected a run or checkpoint of sherd train, found a Hugging "
        "Face model");
  }
  // Before the weights are written, because it may refuse the model.
  const auto description =
      hugging_face_config(source.config, source.vocabulary);
  std::vector<std::string> files;
  const auto checkpoint =
      read_checkpoint(given.path, [&](const std::string& folder) {
        files = merge_checkpoint(
            folder, given.to,
            {.section = source.section,
             .rename =
                 [&](const std::string& name) {
                   return hugging_face_name(source.config, name);
                 },
             .progress = progress_bar("export")});
      });
  try {
    const auto merged =
        std::exchange(files.front(), given.to + "/model.safetensors");
    std::filesystem::rename(merged, files.front());
    files.push_back(given.to + "/config.json");
    replace_file(files.back(), description).throw_if_failed();
    const auto copied = data::copy_tokenizer(source.folder, given.to);
    files.insert(files.end(), copied.begin(), copied.end());
  } catch (...) {
    remove_content(given.to);
    throw;
  }
  return print_files(checkpoint, files, given.json);
}

// Throws Error if the folder has a run, whose files would be replaced.
void expect_no_run(const std::string& folder) {
  std::error_code ignored;
  for (const char* name : {"config.json", "metrics.jsonl"}) {
    const auto path = folder + "/" + name;
    if (std::filesystem::exists(path, ignored) &&
        !std::filesystem::is_empty(path, ignored)) {
      throw Error(folder + ": expected a folder without a run, found " + path);
    }
  }
  // An import that failed leaves a folder without one.
  const auto checkpoint = newest_checkpoint(folder + "/checkpoints");
  if (checkpoint) {
    throw Error(
        folder + ": expected a folder without a run, found " + *checkpoint);
  }
}

// Read as transformers' save_pretrained() writes it.
int import_model(const Arguments& given) {
  const auto& from = given.path;
  const auto& run = given.to;
  const auto source = find_model(from);
  if (source.files.empty()) {
    throw Error(
        from + ": expected a Hugging Face model, found a run of sherd train");
  }
  expect_no_run(run);
  auto config = source.config;
  config.run = ".";  // Relative to the folder of its config.json.
  const auto names = import_checkpoint(
      source.files, run + "/checkpoints",
      {.values =
           {{"train.config", to_json(config, {})},
            {"train.vocabulary", std::to_string(source.vocabulary)}},
       .rename =
           [&](const std::string& name) {
             return name_from_hugging_face(config, name);
           },
       .progress = progress_bar("import")});
  try {
    expect_tensors_of(
        source, checkpoint_content(*newest_checkpoint(run + "/checkpoints")));
    replace_file(run + "/config.json", to_json(config, {})).throw_if_failed();
    data::copy_tokenizer(from, run);
    keep_stop_ids(run, source.stop_ids);
  } catch (...) {
    std::error_code ignored;  // Else the next attempt would find a run here.
    if (const auto made = newest_checkpoint(run + "/checkpoints")) {
      std::filesystem::remove_all(*made, ignored);
    }
    std::filesystem::remove(run + "/config.json", ignored);
    throw;
  }
  if (given.json) {
    print(Json({{"run", run}, {"tensors", names.size()}}));
    return 0;
  }
  std::printf(
      "%s: %zu tensors; train on with\n"
      "sherd train --config %s --data PATH\n",
      run.c_str(), names.size(), shell_quoted(run + "/config.json").c_str());
  return 0;
}

constexpr const char* kPathHelp =
    "A checkpoint, or a run: the newest one in it";

struct CheckpointCommand {
  const char* name;
  const char* about;
  int (*action)(const Arguments&);  // Returns the exit status.
  const char* path_name;
  const char* path_help;
  const char* to_name;  // Null if it takes one path.
  const char* to_help;
};

constexpr CheckpointCommand kCommands[] = {
    {"inspect", "What is in it: step, values, tensors", inspect, "PATH",
     kPathHelp, nullptr, nullptr},
    {"verify", "Read all of it and compare checksums", verify, "PATH",
     kPathHelp, nullptr, nullptr},
    {"diff",
     "In what two of them differ: names, dtypes, shapes, values. Exit status\n"
     "0: equal; 1: different; 2: could not be compared",
     diff, "PATH", kPathHelp, "OTHER", kPathHelp},
    {"merge",
     "Write whole tensors: one safetensors file of each section, e.g.\n"
     "FOLDER/model.safetensors, for any program that reads those",
     merge, "PATH", kPathHelp, "FOLDER", "New, or empty"},
    {"export",
     "Write the model of a run of `sherd train` as Hugging Face's "
     "transformers\n"
     "loads it: config.json, model.safetensors, and what the run has of a\n"
     "tokenizer and generation_config.json",
     export_model, "PATH", kPathHelp, "FOLDER", "New, or empty"},
    {"import",
     "Make a run of a GPT-2, Llama, Mistral, Qwen2 or Qwen3 that transformers\n"
     "has saved, which `sherd train` can continue",
     import_model, "FOLDER", "Folder with config.json and safetensors files",
     "RUN", "The run's folder"},
};

int checkpoint_command(int argc, char** argv) {
  CLI::App app(
      "Look at checkpoints, compare and convert them", "sherd checkpoint");
  app.require_subcommand(1);
  Arguments given;
  for (const auto& command : kCommands) {
    auto* added = app.add_subcommand(command.name, command.about);
    added->add_option(command.path_name, given.path, command.path_help)
        ->required();
    if (command.to_name != nullptr) {
      added->add_option(command.to_name, given.to, command.to_help)->required();
    }
    if (command.action == merge) {
      added->add_flag(
          "--torch", given.archives,
          "FOLDER/model.pt instead, for torch::load() into a module of these "
          "names");
    } else if (command.action == export_model) {
      added->add_option("--weights", given.weights, kWeightsHelp)
          ->type_name("NAME [model]");
    }
    added->add_flag("--json", given.json, "Print JSON");
  }
  if (!parse_arguments(app, words_of(argc, argv))) {
    return 0;
  }
  const auto& command = *std::ranges::find(
      kCommands, app.get_subcommands().front()->get_name(),
      &CheckpointCommand::name);
  try {
    return command.action(given);
  } catch (const std::exception& error) {
    // The files are at fault, not the command line. But 1 says that checkpoints differ, so diff(1)
    // returns for an error what run_main() does for wrong usage.
    throw Error(
        without_backtrace(error.what()),
        command.action == diff ? ErrorCode::kInvalidArgument
                               : ErrorCode::kUnavailable);
  }
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  return sherd::tools::tool_main(argc, argv, sherd::tools::checkpoint_command);
}
