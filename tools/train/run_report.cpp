// SPDX-License-Identifier: Apache-2.0
#include "train/run_report.h"

#include <unistd.h>
#include <cinttypes>
#include <filesystem>
#include <system_error>
#include <utility>
#include <sherd/base/error.h>
#include <sherd/data/tokenizer.h>
#include <torch/version.h>
#include "base/clock.h"
#include "base/text.h"
#include "format_text.h"
#include "generate/model_source.h"
#include "terminal_text.h"
#include "train/curve.h"
#include "train/step_meter.h"

namespace sherd::tools {
namespace {

// As a config file with this path names it, too; "" for "".
std::string absolute_path(const std::string& path) {
  return path_seen_from(std::filesystem::current_path().string(), path);
}

// For the config.json of a run, which may be read from another working directory, or be moved.
TrainConfig movable_config(
    TrainConfig config, const std::string& run, const std::string& init_from) {
  config.run = run;  // Relative to the file.
  config.init_from = init_from;
  config.profile.clear();            // It was asked for once.
  config.network_interface.clear();  // That of this host.
  config.data = absolute_path(config.data);
  return config;
}

bool same_path(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  std::error_code failure;
  return a == b ||
      (fs::weakly_canonical(a, failure) == fs::weakly_canonical(b, failure) &&
       !failure);
}

ProgressStyle style_of(const Trainer& trainer) {
  if (trainer.config().quiet || !trainer.leads()) {
    return ProgressStyle::kSilent;
  }
  return ::isatty(STDOUT_FILENO) == 1 ? ProgressStyle::kBar
                                      : ProgressStyle::kLines;
}

}  // namespace

RunReport::RunReport(
    const Trainer& trainer, std::string batch, std::string subfolder)
    : trainer_(trainer),
      batch_(std::move(batch)),
      subfolder_(std::move(subfolder)),
      progress_(style_of(trainer)) {}

void RunReport::open(const std::string& run, std::optional<std::int64_t> made) {
  first_ = made.value_or(0);
  start_s_ = seconds(SteadyClock().now());
  const bool inside = !subfolder_.empty();
  const auto path = inside ? run + "/" + subfolder_ : run;
  const auto init_from = init_from_of(path);
  if (!trainer_.leads()) {
    return;
  }
  const auto config = to_json(
      movable_config(trainer_.config(), inside ? ".." : ".", init_from),
      about(init_from));
  // A run that begins at step 0 and has metrics ended before its first checkpoint. `made` is 0, not
  // empty, for imported models and for replicas, which always begin from some state.
  const bool may_begin_again =
      first_ == 0 && (made || trainer_.config().save_every > 0);
  const auto aside =
      may_begin_again ? set_aside_metrics(path, config) : std::string();
  folder_ = first_ > 0 ? std::make_unique<RunFolder>(path, config, first_)
                       : std::make_unique<RunFolder>(path, config);
  run_ = run;
  copy_tokenizer();
  const auto& corpus = trainer_.corpus();
  say("data   " + corpus.path() + ": " + std::to_string(corpus.tokens()) +
      " tokens, hash " + hex(corpus.hash()));
  say("model  " + trainer_.config().model + ", " +
      std::to_string(trainer_.parameter_count()) + " parameters; " +
      counted(trainer_.world().size(), "rank") + ", " + batch_text());
  say("run    " + path);
  if (!aside.empty()) {
    say("note   this run ended before its first checkpoint, so it begins "
        "again; its metrics so far are in " +
        aside);
  }
  if (!trainer_.config().init_from.empty() && first_ == 0) {
    say("weights of " + trainer_.config().init_from);
  }
  if (first_ > 0) {
    say("resumes after step " + std::to_string(first_));
  }
}

// Copied next to "checkpoints", where generate, eval and export look for it. A model trained by
// others also has settings for generating.
void RunReport::copy_tokenizer() const {
  const auto folder = trainer_.corpus().tokenizer_folder();
  if (!folder.empty()) {
    data::copy_tokenizer(folder, run_);
  }
  if (first_ == 0 && !trainer_.config().init_from.empty()) {
    const auto model = find_initial_model(trainer_.config());
    data::copy_tokenizer(model.folder, run_);
    keep_stop_ids(run_, model.stop_ids);
  }
}

// Collective. With whose weights the run began: a run that goes on has a record of that.
std::string RunReport::init_from_of(const std::string& path) const {
  const auto given = absolute_path(trainer_.config().init_from);
  const auto recorded = first_ > 0 && trainer_.leads()
      ? recorded_init_from(path).value_or(given)
      : given;
  std::string refusal;
  if (!given.empty() && !same_path(given, recorded)) {
    refusal = "--init-from: expected none" +
        (recorded.empty() ? "" : " or " + recorded) + ", since the run in " +
        path + " goes on from its own checkpoint, found " + given +
        "; another --run begins with those weights";
  }
  const auto refused = trainer_.world().all_gather_texts(refusal).front();
  if (!refused.empty()) {
    throw Error(refused);
  }
  return recorded;
}

std::map<std::string, std::string> RunReport::about(
    const std::string& init_from) const {
  const auto& corpus = trainer_.corpus();
  return {
      {"init_from", init_from},
      {"corpus_path", corpus.path()},
      {"corpus_hash", hex(corpus.hash())},
      {"corpus_tokens", std::to_string(corpus.tokens())},
      {"parameters", std::to_string(trainer_.parameter_count())},
      {"torch", TORCH_VERSION},
      {"world_size", std::to_string(trainer_.world().size())}};
}

void RunReport::say(const std::string& line) {
  if (trainer_.leads() && !trainer_.config().quiet) {
    print_at_once(progress_.finish() + line + "\n");
  }
}

void RunReport::add(StepMetrics record) {
  if (!trainer_.leads()) {
    return;
  }
  record.time = unix_time_s();
  record.tokens +=
      folder_->records().empty() ? 0 : folder_->records().back().tokens;
  folder_->add(record);
  if (record.val_loss.has_value()) {
    val_loss_ = record.val_loss;
  }
  write_curve_if_due(record);
  trained_s_ += record.step_s;
  trained_tokens_ += record.tokens_per_s * record.step_s;
  const auto last = trainer_.last_step();
  const double done = static_cast<double>(record.step - first_);
  const double per_step_s = (seconds(SteadyClock().now()) - start_s_) / done;
  print_at_once(progress_.update(
      {.step = record.step,
       .steps = last,
       .loss = record.loss,
       .val_loss = val_loss_,
       .tokens_per_s = tokens_per_s(),
       .rss_bytes = record.rss_bytes,
       .seconds_left = per_step_s * static_cast<double>(last - record.step)},
      record.val_loss.has_value(), seconds(SteadyClock().now()),
      static_cast<int>(terminal_size().columns)));
}

std::string RunReport::batch_text() const {
  return batch_ + " x " + std::to_string(trainer_.config().seq);
}

double RunReport::tokens_per_s() const {
  return trained_s_ > 0 ? trained_tokens_ / trained_s_ : 0.0;
}

void RunReport::write_curve_if_due(const StepMetrics& record) {
  if (!curve_is_due(
          folder_->records().size(), record.val_loss.has_value(),
          seconds(SteadyClock().now()) - curve_s_)) {
    return;
  }
  curve_s_ = seconds(SteadyClock().now());
  const auto& corpus = trainer_.corpus();
  auto text = format(
      "%" PRId64 " steps of %s, %s; last loss %.3f", record.step,
      batch_text().c_str(), counted(trainer_.world().size(), "rank").c_str(),
      record.loss);
  if (val_loss_.has_value()) {
    text += format(", validation %.3f", *val_loss_);
  }
  folder_->write(
      "curve.html",
      curve_html(
          folder_->path(),
          {text, "data " + corpus.path() + ", hash " + hex(corpus.hash())},
          folder_->records()));
}

void RunReport::finish(
    std::int64_t step, const Sample& sample, const std::string& saved) {
  if (!trainer_.leads() || folder_->records().empty()) {
    return;
  }
  if (!sample.ids.empty()) {
    say("sample (generated text follows the bar):\n" + text_of(sample, run_));
  }
  const auto& last = folder_->records().back();
  say(end_line(
      {.step = step,
       .steps = trainer_.last_step(),
       .loss = last.loss,
       .val_loss = val_loss_,
       .tokens_per_s = tokens_per_s()},
      seconds(SteadyClock().now()) - start_s_));
  say("curve  " + folder_->path() + "/curve.html");
  if (!saved.empty()) {
    say("saved  " + saved);
    say_how_to_go_on();
  } else if (trainer_.config().save_every == 0) {
    say("saved  nothing, as --save-every 0 says");
  }
}

void RunReport::say_how_to_go_on() {
  const auto& config = trainer_.config();
  const bool all_taken = trainer_.last_step() == config.steps;
  const auto& world = trainer_.world();
  // Other hosts have launchers of their own, whose commands are not known here.
  const auto command = world.local_size() < world.size()
      ? "the same command on each host with --run " +
          shell_quoted(folder_->path())
      : "sherd run -n " + std::to_string(world.size()) +
          " -- sherd train --config " +
          shell_quoted(folder_->path() + "/config.json");
  say("resume " + command + (config.stop_at > 0 ? " --stop-at 0" : "") +
      (all_taken ? " --steps " + std::to_string(2 * config.steps) : ""));
}

}  // namespace sherd::tools
