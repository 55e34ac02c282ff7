// SPDX-License-Identifier: Apache-2.0
//
// sherd-train, which `sherd train` becomes: one rank of a training job.
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include <sherd/data/corpus.h>
#include <sherd/world/world.h>
#include "text_file.h"
#include "train/command_line.h"
#include "train/config.h"
#include "train/replica_job.h"
#include "train/train_job.h"
#include "train/trainer.h"

namespace sherd::tools {
namespace {

constexpr int kUsageError = 2;
constexpr std::int64_t kHeaderBytes = 8'000'000;

TrainConfig read_config(const CommandLine& line) {
  std::optional<std::string> text("");
  if (!line.config_path.empty()) {
    text = text_of_file(line.config_path);
  }
  if (!text) {
    throw Error(
        line.config_path + ": expected a readable JSON file, found none");
  }
  return make_config(line.flags, line.config_path, *text);
}

std::unique_ptr<data::Corpus> open_corpus(const TrainConfig& config) {
  const bool headers = config.data.empty();
  const auto limit = headers && config.data_bytes.count == 0
      ? kHeaderBytes
      : config.data_bytes.count;
  return std::make_unique<data::Corpus>(
      headers ? std::string(SHERD_TORCH_HEADERS) : config.data,
      data::CorpusOptions{.bytes_max = limit, .vocabulary = config.vocab});
}

// What a flag of CLI11 itself, --help or an unknown one, ends with.
int parse_end(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {
    return app.exit(error);
  }
  std::fprintf(
      stderr, "sherd train: %s (see sherd train --help)\n", error.what());
  return kUsageError;
}

int fail(const std::string& message, int status) {
  // One line: LibTorch's messages carry a stack trace below theirs.
  std::fprintf(
      stderr, "sherd train: %s\n",
      message.substr(0, message.find('\n')).c_str());
  return status;
}

int train_command(int argc, char** argv) {
  CLI::App app("", "sherd train");
  CommandLine line;
  add_train_options(app, line);
  try {
    app.parse(argc, argv);
    const auto config = read_config(line);
    auto corpus = open_corpus(config);  // Its mistakes need no other rank.
    Trainer trainer(config, std::move(corpus), World::from_environment());
    return is_replica() ? train_replica(trainer) : train(trainer);
  } catch (const CLI::ParseError& error) {
    return parse_end(app, error);
  } catch (const Error& error) {
    const bool usage = error.code() == ErrorCode::kInvalidArgument;
    return fail(error.what(), usage ? kUsageError : 1);
  } catch (const c10::Error& error) {
    return fail(error.what_without_backtrace(), 1);
  }
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  try {
    return sherd::tools::train_command(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sherd train: %s\n", error.what());
    return 1;
  }
}
