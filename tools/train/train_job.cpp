// SPDX-License-Identifier: Apache-2.0
#include "train/train_command.h"

#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <sherd/base/error.h>
#include "format_text.h"
#include "generate/model_source.h"
#include "train/progress_display.h"
#include "train/run_checkpoints.h"
#include "train/run_report.h"
#include "train/signal_request.h"
#include "train/step_profile.h"

namespace sherd::tools {
namespace {

class TrainJob {
 public:
  explicit TrainJob(Trainer& trainer)
      : trainer_(trainer),
        report_(trainer, "batch " + std::to_string(trainer.config().batch)),
        path_(trainer.run_path()),
        profile_(trainer.world(), trainer.config()) {
    write_flight_records(trainer.world(), path_);
  }

  int run() {
    const auto resumed = resume();
    const auto first = resumed.value_or(0);
    if (first >= trainer_.last_step()) {
      say_that_nothing_is_left(first);
      close();
      return 0;
    }
    report_.open(path_, resumed);
    newest_ = resumed ? checkpoint_of(*resumed) : "";
    for (std::int64_t step = first; step < trainer_.last_step(); ++step) {
      profile_.begin_step();
      const auto record = take_step(step);
      report_.add(record);
      say_new_memory_choice();
      // Comes before a checkpoint is made, since the weights of such a step are useless.
      check_finite(record);
      if (save_if_due(record.step)) {
        return kKilledBy + signal_of(asked_);
      }
    }
    profile_.finish();
    if (checkpoints_) {
      checkpoints_->wait();
    }
    report_.finish(trainer_.last_step(), trainer_.sample(), saved_);
    close();
    return 0;
  }

 private:
  std::string checkpoint_of(std::int64_t step) const {
    return path_ + "/checkpoints/step-" + std::to_string(step);
  }

  bool saves() const { return trainer_.config().save_every > 0; }

  // Returns the number of steps made before; nothing if there is no checkpoint.
  std::optional<std::int64_t> resume() {
    if (saves()) {
      install_signal_handlers(trainer_.leads());
    } else if (!has_checkpoint(trainer_.world(), path_)) {
      return std::nullopt;
    }
    checkpoints_.emplace(trainer_, path_);
    const auto resumed = checkpoints_->resume();
    if (resumed == 0) {
      expect_tokenizer_of_imported_model();
    }
    if (!checkpoints_->note().empty()) {
      report_.say("note   " + checkpoints_->note());
    }
    return resumed;
  }

  // A run that `sherd checkpoint import` has made has a model, but no data that it was trained on.
  // Called before the tokenizer of the data replaces that of the model.
  void expect_tokenizer_of_imported_model() const {
    const auto model = find_model(path_);
    for (const auto& source : trainer_.corpus().sources()) {
      expect_tokenizer_of(
          model, source.corpus->path(), source.corpus->tokenizer_digest());
    }
  }

  void say_that_nothing_is_left(std::int64_t first) {
    const auto& config = trainer_.config();
    const bool stopped = config.stop_at > 0;
    report_.say(
        "done   " + path_ + " is at step " + std::to_string(first) + " of " +
        std::to_string(trainer_.last_step()) + "; give --" +
        (stopped ? "stop-at" : "steps") + " larger than " +
        std::to_string(first) + " to train on");
  }

  StepMetrics take_step(std::int64_t step) {
    StepMetrics record{.step = step + 1, .lr = trainer_.learning_rate(step)};
    const StepMeter meter;
    record.loss = trainer_.forward_backward(
        trainer_.first_sample(step), trainer_.batches().next());
    trainer_.engine().update(record);
    asked_ = trainer_.complete(
        record, meter.measure(), trainer_.config().batch,
        take_signal_request());
    return record;
  }

  // Reports what --memory has decided, each time it changes.
  void say_new_memory_choice() {
    if (trainer_.config().memory.count == 0) {
      return;
    }
    const auto memory = trainer_.engine().report().memory;
    const auto choice = "recomputes " + std::to_string(memory.recomputed) +
        " of " + std::to_string(memory.regions) + " layers, keeps " +
        format_memory(memory.budget_bytes) + " of units whole";
    if (memory.decided && choice != memory_choice_said_) {
      memory_choice_said_ = choice;
      report_.say(
          "memory " + format_memory(memory.peak_bytes) + " of " +
          format_memory(memory.limit_bytes) + ": " + choice + "; " +
          format("%.3f s a step expected", memory.step_s));
    }
  }

  // Whether a signal has ended the run. Ranks get signals at different times; a request that one
  // rank has got in this step counts for all.
  bool save_if_due(std::int64_t step) {
    if (!saves()) {
      return false;
    }
    const bool due = step % trainer_.config().save_every == 0;
    if (due || step == trainer_.last_step() || asked_ > 0) {
      check_finite_weights(step);
      checkpoints_->save(step);
      newest_ = saved_ = checkpoint_of(step);
    }
    if (asked_ <= kSaveRequest || step == trainer_.last_step()) {
      return false;
    }
    profile_.finish();
    checkpoints_->wait();
    report_.say(
        std::string("ended  by SIG") + ::sigabbrev_np(signal_of(asked_)) +
        ", saved " + saved_ + "; the same command with --run " +
        shell_quoted(path_) + " continues from there");
    close();
    return true;
  }

  // A skipped step has changed no weight.
  void check_finite(const StepMetrics& record) const {
    if (!std::isfinite(record.loss)) {
      refuse_step(record, "loss", record.loss);
    }
    if (!record.skipped.value_or(false) && !std::isfinite(record.grad_norm)) {
      refuse_step(record, "norm of gradients", record.grad_norm);
    }
  }

  // Loss and gradients may be finite, and the update too large.
  void check_finite_weights(std::int64_t step) const {
    const bool mine = trainer_.engine().weights_are_finite();
    for (const auto& of_rank :
         trainer_.world().all_gather({mine ? 1.0 : 0.0})) {
      if (of_rank[0] == 0.0) {
        throw Error(
            "expected finite weights, found others after step " +
                std::to_string(step) + ", which are not saved" + advice(),
            ErrorCode::kAborted);
      }
    }
  }

  [[noreturn]] void refuse_step(
      const StepMetrics& record, const std::string& what, double found) const {
    throw Error(
        "expected a finite " + what + ", found " + std::to_string(found) +
            " at step " + std::to_string(record.step) + advice(),
        ErrorCode::kAborted);
  }

  std::string advice() const {
    return "; try a lower --lr" +
        (newest_.empty() ? ""
                         : ", and if that does not help, remove " + newest_ +
                 ", from which the same command goes on");
  }

  void close() {
    checkpoints_.reset();
    trainer_.close();
  }

  Trainer& trainer_;
  RunReport report_;
  const std::string path_;
  StepProfile profile_;
  std::optional<RunCheckpoints> checkpoints_;
  std::string saved_;   // The last checkpoint that this start has saved.
  std::string newest_;  // The same, or what it goes on from.
  std::string memory_choice_said_;
  int asked_ = 0;  // Requested by signals on any rank.
};

}  // namespace

int train(Trainer& trainer) { return TrainJob(trainer).run(); }

}  // namespace sherd::tools
