// SPDX-License-Identifier: Apache-2.0
#include "train/train_command.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include <sherd/data/blended_corpus.h>
#include <sherd/world/world.h>
#include "base/hex.h"
#include "generate/load_weights.h"
#include "parse_arguments.h"
#include "text_file.h"
#include "train/command_line.h"
#include "train/config.h"
#include "train/initial_model.h"
#include "train/model_options.h"
#include "train/plan_job.h"
#include "train/run_checkpoints.h"
#include "train/trainer.h"

namespace sherd::tools {
namespace {

constexpr std::int64_t kHeaderBytes = 8'000'000;

// The user's options, and the model whose weights the run begins with.
struct Request {
  TrainConfig config;
  std::optional<ModelSource> initial;
};

Request read_request(const CommandLine& line) {
  const auto text =
      line.config_path.empty() ? std::string() : text_in(line.config_path);
  Request request;
  auto& config = request.config;
  config = read_config(line.flags, line.config_path, text);
  if (!config.init_from.empty()) {
    request.initial = initial_model(config);
    auto model = model_options(request.initial->config);
    model.vocab = request.initial->vocabulary;
    config = with_sizes_of(
        read_config(line.flags, line.config_path, text, model), model,
        request.initial->weights);
  }
  check_config(config);
  return request;
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

// The coordinator decides how many samples a replica has in a step. Throws Error if --batch differs
// from the number that SHERD_SAMPLES and SHERD_REPLICAS give.
void expect_batch_of_replica(std::int64_t batch) {
  const auto number_in = [](const char* name) {
    const char* text = std::getenv(name);
    return text == nullptr ? 0 : std::atoll(text);
  };
  const std::int64_t samples = number_in("SHERD_SAMPLES");
  const std::int64_t replicas = number_in("SHERD_REPLICAS");
  if (samples > 0 && replicas > 0 && batch * replicas != samples) {
    throw Error(
        "--batch: expected none, since replicas have the samples that sherd "
        "run --samples-per-replica or --global-batch gives them, or " +
        std::to_string(samples / replicas) + ", found " +
        std::to_string(batch));
  }
}

}  // namespace

int train_command(int argc, char** argv, int (*train)(Trainer&)) {
  CLI::App app("", "sherd train");
  CommandLine line;
  add_train_options(app, line);
  if (!parse_arguments(app, words_of(argc, argv))) {
    return 0;
  }
  const auto [config, initial] = read_request(line);
  if (is_replica() && !config.profile.empty()) {
    throw Error(
        "--profile: expected ranks that stay together, found replicas of a "
        "fault-tolerant run");
  }
  if (is_replica() && line.plan) {
    throw Error(
        "--plan: expected a run without replicas, found one of a "
        "fault-tolerant run");
  }
  if (is_replica() && line.flags.contains("batch")) {
    expect_batch_of_replica(config.batch);
  }
  if (is_replica() && config.run.empty()) {
    throw Error(
        "--run: expected the folder of the run, which replicas share and find "
        "again when they are started again; found none");
  }
  auto corpus = open_corpus(config);  // Its errors need no other rank.
  if (initial) {
    for (const auto& source : corpus->sources()) {
      expect_tokenizer_of(
          *initial, source.corpus->path(), source.corpus->tokenizer_digest());
    }
  }
  const auto world = World::from_environment();
  expect_same_data(*corpus, world);
  warn_of_unused_checkpoints(line, config, world);
  Trainer trainer(config, std::move(corpus), world);
  if (line.plan) {
    return print_plan(trainer);
  }
  if (initial) {
    load_weights(
        trainer.world(), *initial, trainer.engine().named_parameters());
    trainer.engine().reset_average();
  }
  return train(trainer);
}

}  // namespace sherd::tools
