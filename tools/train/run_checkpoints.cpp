// SPDX-License-Identifier: Apache-2.0
#include "train/run_checkpoints.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <sherd/base/error.h>
#include <sherd/ft/replica_checkpoints.h>
#include <sherd/models/llama.h>
#include "base/parent_folder.h"
#include "base/text.h"
#include "generate/model_source.h"
#include "train/model_options.h"

namespace sherd::tools {
namespace {

constexpr const char* kFolder = "/checkpoints";

std::map<std::string, std::string> values_of(const data::Position& position) {
  return {
      {"data.step", std::to_string(position.step)},
      {"data.seed", std::to_string(position.seed)},
      {"data.batch", std::to_string(position.batch)},
      {"data.sequence", std::to_string(position.sequence)},
      {"data.corpus_hash", hex(position.corpus_hash)}};
}

std::uint64_t number_in(
    const std::map<std::string, std::string>& values,
    const char* name,
    int base = 10) {
  const auto found = values.find(name);
  if (found == values.end()) {
    throw Error(
        std::string("expected a checkpoint of sherd train, found none of its "
                    "values: ") +
        name);
  }
  const auto number = parse_number<std::uint64_t>(found->second, base);
  if (!number) {
    throw Error(
        std::string("expected a checkpoint of sherd train, whose ") + name +
        " is a number, found '" + found->second + "'");
  }
  return *number;
}

data::Position position_of(const std::map<std::string, std::string>& values) {
  return {
      .step = static_cast<std::int64_t>(number_in(values, "data.step")),
      .seed = number_in(values, "data.seed"),
      .batch = static_cast<std::int64_t>(number_in(values, "data.batch")),
      .sequence = static_cast<std::int64_t>(number_in(values, "data.sequence")),
      .corpus_hash = number_in(values, "data.corpus_hash", 16)};
}

TrainConfig model_in(
    const std::map<std::string, std::string>& values,
    const std::string& folder) {
  auto model = read_config({}, folder, values.at("train.config"));
  model.vocab =
      static_cast<std::int64_t>(number_in(values, "train.vocabulary"));
  return model;
}

// An imported checkpoint has no optimizer state.
void check_optimizer(
    const CheckpointContent& content, const std::string& optimizer) {
  const std::string saved = has_section(content, "muon") ? "muon"
      : has_section(content, "adamw")                    ? "adamw"
                                                         : optimizer;
  if (saved != optimizer) {
    throw Error(
        "--optimizer: expected " + saved + ", whose state is in " +
        content.folder + ", found " + optimizer);
  }
}

// The same on every rank, or an error on every rank.
CheckpointContent content_on_all_ranks(
    const std::string& folder, const World& world) {
  CheckpointContent content;
  std::string damage;
  try {
    content = checkpoint_content(folder);
  } catch (const Error& error) {
    damage = error.what();
  }
  for (const auto& found : world.all_gather_texts(damage)) {
    if (!found.empty()) {
      throw Error(found, ErrorCode::kUnavailable);
    }
  }
  return content;
}

// Names are "SECTION TENSOR" each.
void expect_differences_in(
    const std::vector<std::string>& sections, const LoadReport& report) {
  auto names = report.missing;
  names.insert(names.end(), report.unexpected.begin(), report.unexpected.end());
  for (const auto& name : names) {
    const auto section = name.substr(0, name.find(' '));
    if (std::find(sections.begin(), sections.end(), section) ==
        sections.end()) {
      throw Error(
          report.folder +
          ": expected the tensors of this model and optimizer, found a "
          "difference in " +
          name);
    }
  }
}

}  // namespace

std::map<std::string, std::string> model_metadata(const Trainer& trainer) {
  auto config = trainer.config();
  if (config.model != "gpt") {
    config.kv_heads = config.kv_heads > 0 ? config.kv_heads : config.heads;
    config.intermediate = config.intermediate > 0
        ? config.intermediate
        : models::llama_intermediate(config.width);
  }
  std::map<std::string, std::string> values = {
      {"train.config", to_json(config, {})},
      {"train.vocabulary", std::to_string(trainer.corpus().vocabulary())}};
  if (trainer.reads_bytes()) {
    values[kTrainTokens] = kByteTokens;
  }
  return values;
}

void expect_model_of(
    const CheckpointContent& content,
    const std::map<std::string, std::string>& job) {
  const auto& folder = content.folder;
  if (!content.values.contains("train.config")) {
    return;
  }
  const auto saved = model_in(content.values, folder);
  const auto given = model_in(job, folder);
  if (content.step > 0) {
    expect_same_model(given, saved, folder);
  } else {  // An imported one, with which the run begins.
    (void)with_sizes_of(given, saved, folder);
  }
}

RunCheckpoints::RunCheckpoints(Trainer& trainer, const std::string& run_path)
    : trainer_(trainer),
      folder_(run_path + kFolder),
      about_(model_metadata(trainer)),
      saver_(
          trainer.world(),
          folder_,
          {.asynchronous = true, .keep_last = int_of(trainer.config().keep)}) {
  trainer.engine().add_to(state_);
  state_.add_buffers(trainer.model());
}

std::optional<std::int64_t> RunCheckpoints::resume() {
  const auto report = load_newest_checkpoint(
      trainer_.world(), folder_,
      [&](const std::string& checkpoint) { return load(checkpoint); });
  if (!report) {
    return std::nullopt;
  }
  if (state_.values.contains(ft::kReplicaState)) {
    throw Error(
        report->folder +
        ": expected a checkpoint of a run without replicas, found one of "
        "replicas, which go on with sherd run --fault-tolerant");
  }
  // An imported checkpoint has no position in any data.
  if (report->step > 0) {
    trainer_.batches().restore(position_of(state_.values));
  }
  return report->step;
}

LoadReport RunCheckpoints::load(const std::string& folder) {
  const auto content = content_on_all_ranks(folder, trainer_.world());
  expect_model_of(content, about_);
  check_optimizer(content, trainer_.config().optimizer);
  auto* hook = trainer_.engine().hook();
  auto memory = hook != nullptr && !hook->state().empty()
      ? room_for_hook_state(content, trainer_.engine().hook_mesh())
      : CommHook::State();
  auto state = state_;
  add_hook_state(state, memory, trainer_.engine().hook_mesh());
  note_.clear();
  std::vector<std::string> differing;  // Sections.
  const auto differs = [&](const char* section, const char* note) {
    differing.emplace_back(section);
    note_ += (note_.empty() ? "" : "; ") + folder + ": " + note;
  };
  if (memory.empty() && has_section(content, kHookSection)) {
    differs(
        kHookSection,
        "what its hook remembered is not used, since the hook or the number "
        "of ranks or replicas is another");
  }
  const bool averages = trainer_.config().ema > 0.0;
  const bool has_average = has_section(content, kAveragedWeights);
  if (averages != has_average) {
    differs(
        kAveragedWeights,
        averages ? "has no average of the weights, which begins with the "
                   "weights there"
                 : "its average of the weights is not used, since --ema is 0");
  }
  if (has_section(content, kScalerSection)) {
    if (const auto* scaler = trainer_.engine().scaler()) {
      state.add(kScalerSection, scaler->state());
    } else {
      differs(
          kScalerSection,
          "its scale of the loss is not used, since --dtype is not fp16");
    }
  }
  const auto report = load_checkpoint(
      trainer_.world(), folder, state, {.strict = differing.empty()});
  expect_differences_in(differing, report);
  if (!memory.empty()) {
    hook->load(memory);
  }
  if (averages && !has_average) {
    trainer_.engine().reset_average();
  }
  state_.values = state.values;
  return report;
}

void RunCheckpoints::save(std::int64_t step) {
  auto state = state_;
  state.values = values_of(trainer_.batches().position());
  state.values.insert(about_.begin(), about_.end());
  if (auto* hook = trainer_.engine().hook()) {
    add_hook_state(state, hook->state(), trainer_.engine().hook_mesh());
  }
  if (const auto* scaler = trainer_.engine().scaler()) {
    state.add(kScalerSection, scaler->state());
  }
  warn_if_disk_fails([&] { saver_.wait(); });  // For the previous save.
  warn_if_disk_fails([&] { saver_.save(step, state); });
}

void RunCheckpoints::warn_if_disk_fails(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {  // The same on every rank.
    if (error.code() != ErrorCode::kUnavailable) {
      throw;
    }
    if (trainer_.world().rank() == 0) {
      std::fprintf(
          stderr,
          "sherd train: warning: a checkpoint was not saved, and training goes "
          "on; the next one is tried: %s\n",
          error.what());
    }
  }
}

bool has_checkpoint(const World& world, const std::string& run_path) {
  const bool found =
      world.rank() == 0 && newest_checkpoint(run_path + kFolder).has_value();
  return world.all_gather({found ? 1.0 : 0.0})[0][0] > 0;
}

std::string unused_checkpoints(
    const std::string& config_path, const std::string& run) {
  namespace fs = std::filesystem;
  const auto folder = parent_folder(config_path);
  const auto newest = newest_checkpoint(folder + kFolder);
  if (!newest ||
      (!run.empty() &&
       fs::weakly_canonical(run) == fs::weakly_canonical(folder))) {
    return "";
  }
  return *newest + " is not used: this run's folder is " +
      (run.empty() ? "a new one" : run) + "; --run " + folder +
      " goes on from that checkpoint";
}

}  // namespace sherd::tools
