// SPDX-License-Identifier: Apache-2.0
//
// sherd-train, which `sherd train` becomes: one rank of a training job.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include <sherd/base/run_main.h>
#include <sherd/data/blended_corpus.h>
#include <sherd/world/world.h>
#include "base/hex.h"
#include "parse_arguments.h"
#include "text_file.h"
#include "train/command_line.h"
#include "train/config.h"
#include "train/initial_weights.h"
#include "train/replica_job.h"
#include "train/run_checkpoints.h"
#include "train/train_job.h"
#include "train/trainer.h"

namespace sherd::tools {
namespace {

constexpr std::int64_t kHeaderBytes = 8'000'000;

TrainConfig read_config(const CommandLine& line) {
  const auto text =
      line.config_path.empty() ? std::string() : text_in(line.config_path);
  auto config = make_config(line.flags, line.config_path, text);
  if (!config.init_from.empty()) {
    auto options = model_options_of(config.init_from);
    for (const auto& [name, value] : line.flags) {
      options[name] = value;
    }
    config = make_config(options, line.config_path, text);
  }
  return config;
}

std::unique_ptr<data::BlendedCorpus> open_corpus(const TrainConfig& config) {
  const bool headers = config.data.empty();
  const auto limit = headers && config.data_bytes.count == 0
      ? kHeaderBytes
      : config.data_bytes.count;
  return std::make_unique<data::BlendedCorpus>(
      headers ? std::string(SHERD_TORCH_HEADERS) : config.data,
      data::CorpusOptions{.bytes_max = limit, .vocabulary = config.vocab});
}

// Each rank has read its own files, perhaps on another host. Throws on every rank.
void expect_same_data(const data::BlendedCorpus& corpus, const World& world) {
  const auto hashes = world.all_gather_texts(hex(corpus.hash()));
  for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] != hashes[0]) {
      throw Error(
          "--data: expected the same data on every rank, found hash " +
          hashes[0] + " on rank 0 and " + hashes[rank] + " on rank " +
          std::to_string(rank));
    }
  }
}

void warn_of_unused_checkpoints(
    const CommandLine& line, const TrainConfig& config, const World& world) {
  if (line.config_path.empty() || world.rank() != 0) {
    return;
  }
  const auto warning = unused_checkpoints(line.config_path, config.run);
  if (!warning.empty()) {
    std::fprintf(stderr, "sherd train: %s\n", warning.c_str());
  }
}

int train_command(int argc, char** argv) {
  CLI::App app("", "sherd train");
  CommandLine line;
  add_train_options(app, line);
  if (!parse_arguments(app, words_of(argc, argv))) {
    return 0;
  }
  const auto config = read_config(line);
  auto corpus = open_corpus(config);  // Its mistakes need no other rank.
  const auto world = World::from_environment();
  expect_same_data(*corpus, world);
  warn_of_unused_checkpoints(line, config, world);
  Trainer trainer(config, std::move(corpus), world);
  if (!config.init_from.empty()) {
    load_initial_weights(trainer);
  }
  return is_replica() ? train_replica(trainer) : train(trainer);
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  return sherd::run_main(
      argc, argv, [&] { return sherd::tools::train_command(argc, argv); });
}
