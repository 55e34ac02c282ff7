// SPDX-License-Identifier: Apache-2.0
#include "train/run_checkpoints.h"

#include <atomic>
#include <csignal>
#include <sherd/base/error.h>
#include <sherd/ft/replica_checkpoints.h>
#include <sherd/models/llama.h>

namespace sherd::tools {
namespace {

std::atomic<int> asked{0};
static_assert(std::atomic<int>::is_always_lock_free);

void ask(int signal) {
  if (signal == SIGTERM) {
    asked.store(2, std::memory_order_relaxed);
  } else {
    int nothing = 0;
    asked.compare_exchange_strong(nothing, 1, std::memory_order_relaxed);
  }
}

std::map<std::string, std::string> values_of(const data::Position& position) {
  return {
      {"data.step", std::to_string(position.step)},
      {"data.seed", std::to_string(position.seed)},
      {"data.batch", std::to_string(position.batch)},
      {"data.sequence", std::to_string(position.sequence)},
      {"data.corpus_hash", std::to_string(position.corpus_hash)}};
}

std::uint64_t number_in(
    const std::map<std::string, std::string>& values, const char* name) {
  const auto found = values.find(name);
  if (found == values.end()) {
    throw Error(
        std::string("expected a checkpoint of sherd train, found none of its "
                    "values: ") +
        name);
  }
  return std::stoull(found->second);
}

data::Position position_of(const std::map<std::string, std::string>& values) {
  return {
      .step = static_cast<std::int64_t>(number_in(values, "data.step")),
      .seed = number_in(values, "data.seed"),
      .batch = static_cast<std::int64_t>(number_in(values, "data.batch")),
      .sequence = static_cast<std::int64_t>(number_in(values, "data.sequence")),
      .corpus_hash = number_in(values, "data.corpus_hash")};
}

}  // namespace

std::map<std::string, std::string> model_metadata(
    TrainConfig config, std::int64_t vocabulary) {
  if (config.model == "llama") {
    config.kv_heads = config.kv_heads > 0 ? config.kv_heads : config.heads;
    config.intermediate = config.intermediate > 0
        ? config.intermediate
        : models::llama_intermediate(config.width);
  }
  return {
      {"train.config", to_json(config, {})},
      {"train.vocabulary", std::to_string(vocabulary)}};
}

RunCheckpoints::RunCheckpoints(Trainer& trainer, const std::string& run_path)
    : trainer_(trainer),
      about_(model_metadata(trainer.config(), trainer.corpus().vocabulary())),
      saver_(
          trainer.world(),
          run_path + "/checkpoints",
          {.asynchronous = true,
           .keep_last = static_cast<int>(trainer.config().keep)}) {
  trainer.engine().add_to(state_);
  state_.add_buffers(trainer.model());
}

std::int64_t RunCheckpoints::resume() {
  const auto newest = saver_.newest();
  if (!newest) {
    return 0;
  }
  const auto report = load_checkpoint(trainer_.world(), *newest, state_);
  if (state_.values.contains(ft::kReplicaState)) {
    throw Error(
        *newest +
        ": expected a checkpoint of a run without replicas, found one of "
        "replicas, which go on with sherd run --fault-tolerant");
  }
  // One that was imported has no place in any data.
  if (report.step > 0) {
    trainer_.batches().restore(position_of(state_.values));
  }
  return report.step;
}

void RunCheckpoints::save(std::int64_t step) {
  state_.values = values_of(trainer_.batches().position());
  state_.values.insert(about_.begin(), about_.end());
  saver_.save(step, state_);
}

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = ask;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGUSR1, &action, nullptr);
}

int take_signal_request() {
  int checkpoint = 1;
  return asked.compare_exchange_strong(checkpoint, 0, std::memory_order_relaxed)
      ? 1
      : checkpoint;
}

}  // namespace sherd::tools
