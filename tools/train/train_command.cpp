// SPDX-License-Identifier: Apache-2.0
#include "train/train_command.h"

#include <sys/sysinfo.h>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include <sherd/data/blended_corpus.h>
#include <sherd/world/world.h>
#include "base/host.h"
#include "base/text.h"
#include "format_text.h"
#include "generate/load_model.h"
#include "parse_arguments.h"
#include "text_file.h"
#include "train/config.h"
#include "train/model_options.h"
#include "train/run_checkpoints.h"
#include "train/trainer.h"

namespace sherd::tools {
namespace {

constexpr std::int64_t kHeaderBytes = 8'000'000;
constexpr const char* kDescription =
    "Train a language model on text and watch it learn.\n"
    "\n"
    "Without options: 200 steps of a GPT of 6.4 million parameters on the\n"
    "header files of LibTorch, which are on every machine that has sherd.\n"
    "Started by `sherd run -n N`, torchrun, srun or mpirun, the ranks train\n"
    "one model together; alone it trains on this process.";

constexpr const char* kExamples =
    "Examples:\n"
    "  sherd train\n"
    "  sherd train --data my/texts --steps 1000\n"
    "  sherd train --model llama --kv-heads 2\n"
    "  sherd train --plan --layers 24 --width 1024\n"
    "  sherd run -n 2 -- sherd train --strategy full_shard --budget 16MiB\n"
    "  sherd train --config runs/20260102-030405/config.json --lr 1e-3\n"
    "\n"
    "The run's folder then has config.json, metrics.jsonl (one line a step)\n"
    "and curve.html, which opens in any browser.";

// What the user wrote, by option name; options that were not given are absent.
struct CommandLine {
  std::map<std::string, std::string> flags;
  std::string config_path;
  bool plan = false;  // Print what would be trained, and exit.
};

// Makes "true" or "false" of a flag's value, such as "yes". CLI11 ends with an exception that is none
// of its own if it meets another text.
std::string read_flag(std::string& text) {
  bool value = false;
  if (!CLI::detail::lexical_cast(text, value)) {
    return "expected true or false, found '" + text + "'";
  }
  text = value ? "true" : "false";
  return "";
}

// The options are those of the table. `line` is filled when `app` parses and must live until then.
void add_train_options(CLI::App& app, CommandLine& line) {
  app.description(kDescription);
  app.footer(kExamples);
  app.option_defaults()->take_last();  // Scripts append to options they have.
  app.add_option(
         "--config", line.config_path,
         "JSON file with these options; flags win over it")
      ->type_name("FILE");
  app.add_flag(
      "--plan", line.plan,
      "Say what would be trained, with memory and time a step measured in a "
      "few\n"
      "steps, and end; nothing is written");
  for (const auto& row : option_specs()) {
    const std::string name = row.name;
    const std::string flag = "--" + name;
    if (*row.value == '\0') {
      // --quiet=false counts as -1, and wins over a file that says true.
      app.add_flag_function(
             flag,
             [&line, name](std::int64_t count) {
               line.flags[name] = count > 0 ? "true" : "false";
             },
             row.help)
          ->take_last()
          ->group(row.group)
          ->transform(CLI::Validator(read_flag, ""));
      continue;
    }
    const auto preset = text_of(row, {});
    app.add_option_function<std::string>(
           flag,
           [&line, name](const std::string& text) { line.flags[name] = text; },
           row.help)
        ->group(row.group)
        ->type_name(
            preset.empty() ? row.value : row.value + (" [" + preset + "]"));
  }
}

// The user's options, and the model whose weights the run begins with.
struct Request {
  TrainConfig config;
  std::optional<ModelSource> initial;
};

// Whether the run goes on from a checkpoint of its own. Replicas that do not save do not read
// checkpoints either.
bool goes_on(const TrainConfig& config) {
  return config.save_every > 0 && !config.run.empty() &&
      checkpoint_at(config.run).has_value();
}

Request read_request(const CommandLine& line) {
  const auto text =
      line.config_path.empty() ? std::string() : text_in(line.config_path);
  Request request;
  auto& config = request.config;
  config = read_config(line.flags, line.config_path, text);
  if (!config.init_from.empty()) {
    try {
      request.initial = find_initial_model(config);
    } catch (const Error&) {
      if (!goes_on(config)) {
        throw;
      }  // Else the run has its own weights, and options of the model, now.
    }
    const auto source =
        request.initial ? *request.initial : find_model(config.run);
    auto model = model_options(source.config);
    model.vocab = source.vocabulary;
    config = with_sizes_of(
        read_config(line.flags, line.config_path, text, model), model,
        source.weights);
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

WorldOptions world_options(const TrainConfig& config) {
  return {
      .deadline = std::chrono::seconds(config.deadline_s),
      .rendezvous_deadline = std::chrono::seconds(config.rendezvous_deadline_s),
      .network_interface = config.network_interface};
}

// Throws on every rank where ranks have different texts. `expected` is the error up to the first text.
void expect_same(
    const World& world, const std::string& expected, const std::string& mine) {
  const auto texts = world.all_gather_texts(mine);
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] != texts[0]) {
      throw Error(
          expected + " " + texts[0] + " on rank 0 and " + texts[rank] +
          " on rank " + std::to_string(rank));
    }
  }
}

// Each rank was told its options by its own host. Throws on every rank.
void expect_same_options(
    const TrainConfig& config, bool plan, const World& world) {
  expect_same(
      world, "--plan: expected the same on every rank, found it",
      plan ? "given" : "not given");
  const auto hosts = world.all_gather_texts(host_name());
  const auto options = world.all_gather_texts(to_json(config, {}));
  const auto options_of = [&](std::size_t rank) {
    return read_config({}, "rank " + std::to_string(rank), options[rank]);
  };
  const auto shown = [&](std::size_t rank, const std::string& value) {
    return (value.empty() ? "none" : value) + " on rank " +
        std::to_string(rank) + " (" + hosts[rank] + ")";
  };
  const auto first = options_of(0);
  const auto expected = rank_invariant_config(first);
  for (std::size_t rank = 1; rank < options.size(); ++rank) {
    if (options[rank] == options[0]) {
      continue;
    }
    const auto other = options_of(rank);
    const auto found = rank_invariant_config(other);
    std::string differences;
    for (const auto& row : option_specs()) {
      if (text_of(row, found) != text_of(row, expected)) {
        differences += (differences.empty() ? "--" : "; --") +
            std::string(row.name) +
            ": expected the same on every rank, found " +
            shown(0, text_of(row, first)) + " and " +
            shown(rank, text_of(row, other));
      }
    }
    if (!differences.empty()) {
      throw Error(differences);
    }
  }
}

// Each rank has read its own files, perhaps on another host. Throws on every rank.
void expect_same_data(const data::BlendedCorpus& corpus, const World& world) {
  expect_same(
      world, "--data: expected the same data on every rank, found hash",
      hex(corpus.hash()));
}

// A typing error in a size is a usage error, so that launchers do not repeat the command. Counts
// only a part of the parameters, as if they were shared among all ranks.
void expect_model_fits(
    const TrainConfig& config, std::int64_t vocabulary, int ranks) {
  struct sysinfo host = {};
  (void)::sysinfo(&host);
  const auto width = static_cast<double>(config.width);
  const double parameters = width *
      (static_cast<double>(vocabulary) +
       static_cast<double>(config.layers) * width);
  const double bytes = 4.0 * parameters / ranks;
  const double room = static_cast<double>(host.mem_unit) *
      (static_cast<double>(host.totalram) +
       static_cast<double>(host.totalswap));
  if (config.device == "cpu" && room > 0.0 && bytes > room) {
    throw Error(format(
        "--width, --layers, --vocab: expected a model that fits into memory, "
        "%.0f GiB on this host, found one with at least %.0f GiB of "
        "parameters for each rank",
        room / 0x1p30, bytes / 0x1p30));
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
  const auto world = World::from_environment(world_options(config));
  expect_same_options(config, line.plan, world);
  expect_same_data(*corpus, world);
  warn_of_unused_checkpoints(line, config, world);
  expect_model_fits(config, corpus->vocabulary(), world.size());
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
