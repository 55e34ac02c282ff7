// SPDX-License-Identifier: Apache-2.0
#include "train/train_job.h"

#include <chrono>
#include <cmath>
#include <optional>
#include <string>
#include <sherd/base/error.h>
#include "train/run_checkpoints.h"
#include "train/run_report.h"

namespace sherd::tools {
namespace {

constexpr int kSaveAndEnd = 2;  // What take_signal_request() says.

class TrainJob {
 public:
  explicit TrainJob(Trainer& trainer)
      : trainer_(trainer),
        report_(trainer, "batch " + std::to_string(trainer.config().batch)) {}

  int run() {
    const auto first = open();
    for (std::int64_t step = first; step < trainer_.last_step(); ++step) {
      const auto record = take_step(step);
      report_.add(record);
      if (save_if_due(record.step)) {
        return kTerminated;
      }
      check_loss(record);
    }
    if (checkpoints_) {
      checkpoints_->wait();
    }
    report_.finish(trainer_.sample(), checkpoints_.has_value());
    close();
    return 0;
  }

 private:
  // Returns the steps that were taken before.
  std::int64_t open() {
    const auto path = trainer_.run_path();
    std::int64_t first = 0;
    if (trainer_.config().save_every > 0) {
      install_signal_handlers();
      checkpoints_.emplace(trainer_, path);
      first = checkpoints_->resume();
    }
    report_.open(path, first, first > 0);
    return first;
  }

  StepMetrics take_step(std::int64_t step) {
    StepMetrics record{.step = step + 1, .lr = trainer_.learning_rate(step)};
    const auto begin = std::chrono::steady_clock::now();
    record.loss = trainer_.forward_backward(step, trainer_.batches().next());
    record.grad_norm = trainer_.engine().update(record.lr);
    record.step_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
    asked_ = trainer_.complete(
        record, trainer_.config().batch, take_signal_request());
    return record;
  }

  // Whether a signal has ended the run. Ranks get signals at different times:
  // what one has heard in this step all have.
  bool save_if_due(std::int64_t step) {
    if (!checkpoints_) {
      return false;
    }
    const bool due = step % trainer_.config().save_every == 0;
    if (due || step == trainer_.last_step() || asked_ > 0) {
      checkpoints_->save(step);
    }
    if (asked_ < kSaveAndEnd) {
      return false;
    }
    checkpoints_->wait();
    report_.say(
        "ended  by SIGTERM, saved at step " + std::to_string(step) +
        "; the same command goes on from there");
    close();
    return true;
  }

  static void check_loss(const StepMetrics& record) {
    if (!std::isfinite(record.loss)) {
      throw Error(
          "expected a finite loss, found " + std::to_string(record.loss) +
              " at step " + std::to_string(record.step) + "; try a lower --lr",
          ErrorCode::kAborted);
    }
  }

  void close() {
    checkpoints_.reset();
    trainer_.close();
  }

  Trainer& trainer_;
  RunReport report_;
  std::optional<RunCheckpoints> checkpoints_;
  int asked_ = 0;  // By signals, of any rank.
};

}  // namespace

int train(Trainer& trainer) { return TrainJob(trainer).run(); }

}  // namespace sherd::tools
