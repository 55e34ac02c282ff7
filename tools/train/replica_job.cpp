// SPDX-License-Identifier: Apache-2.0
#include "train/train_command.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <sherd/base/error.h>
#include <sherd/ft/replica_checkpoints.h>
#include <sherd/ft/replica_session.h>
#include "format_text.h"
#include "generate/model_source.h"
#include "train/run_checkpoints.h"
#include "train/run_report.h"
#include "train/signal_request.h"
#include "train/step_profile.h"
#include "train/trainer.h"

namespace sherd::tools {
namespace {

// A spare waits here until it gets the place of a replica.
ft::SessionOptions session_options(const TrainConfig& config) {
  auto options = ft::SessionOptions::from_environment();
  options.config = to_json(replica_invariant_config(config), {});
  if (config.dtype == "fp16") {
    // The scaler finds them in the sum, and all replicas skip the step.
    options.non_finite_gradients = ft::GradientPolicy::kGive;
  }
  if (config.lr_scaling != "none") {
    if (options.samples_full == 0) {
      throw Error(
          "--lr-scaling: expected SHERD_SAMPLES, the samples of a step that "
          "lacks no replica, as sherd run sets it; found it unset");
    }
    options.config += std::to_string(options.samples_full);
  }
  return options;
}

// Replicas copy their state from each other, so a run must have the same tensors as long as it
// lives.
void check_newest(
    const TrainConfig& config, const std::map<std::string, std::string>& job) {
  const auto newest = newest_checkpoint(config.run + "/checkpoints");
  if (!newest) {
    return;
  }
  CheckpointContent content;
  try {
    content = checkpoint_content(*newest);
  } catch (const Error&) {  // Loading it reports what is wrong with it.
    return;
  }
  expect_model_of(content, job);
  const bool wanted = config.ema > 0.0;
  if (has_section(content, kAveragedWeights) != wanted) {
    throw Error(
        std::string("--ema: expected ") + (wanted ? "0" : "a decay above 0") +
        " for replicas that go on from " + *newest + ", found " +
        format("%g", config.ema));
  }
}

std::unique_ptr<ft::ReplicaCheckpoints> make_checkpoints(
    const Trainer& trainer, CheckpointState state) {
  const auto& config = trainer.config();
  if (config.save_every == 0) {
    return nullptr;
  }
  state.values = model_metadata(trainer);
  check_newest(config, state.values);
  return std::make_unique<ft::ReplicaCheckpoints>(
      trainer.world(), std::move(state),
      ft::ReplicaCheckpointOptions{
          .folder = config.run + "/checkpoints",
          .save_every = config.save_every,
          .keep_last = int_of(config.keep)});
}

// Where the options of the newest checkpoint differ from these, for an error; empty if they do not,
// or if there is none.
std::string differences_from_checkpoint(const Trainer& trainer) {
  const auto newest = newest_checkpoint(trainer.config().run + "/checkpoints");
  if (!newest) {
    return "";
  }
  const auto content = checkpoint_content(*newest);
  const auto options_in = [](const std::map<std::string, std::string>& values) {
    const auto found = values.find("train.config");
    return replica_invariant_config(
        found == values.end() ? TrainConfig()
                              : read_config({}, "train.config", found->second));
  };
  const auto saved = options_in(content.values);
  const auto now = options_in(model_metadata(trainer));
  std::string text;
  for (const auto& row : option_specs()) {
    if (text_of(row, saved) != text_of(row, now)) {
      text += std::string(" --") + row.name + "=" + text_of(row, saved);
    }
  }
  if (content.world_size != trainer.world().size()) {
    text += " --ranks-per-replica=" + std::to_string(content.world_size);
  }
  return text.empty() ? text : "; " + *newest + " is of a run with" + text;
}

CheckpointState state_of(Trainer& trainer) {
  CheckpointState state;
  trainer.engine().add_to(state);
  state.add_buffers(trainer.model());
  if (const auto* scaler = trainer.engine().scaler()) {
    state.add(kScalerSection, scaler->state());
  }
  return state;
}

// Lets the replica leave when a signal asks for it, even while it waits: for a step that the
// coordinator does not decide, or for more replicas. It has a thread of its own.
class LeaveSignalWatcher {
 public:
  // REQUIRES: install_signal_handlers() was called; the session outlives this object.
  explicit LeaveSignalWatcher(ft::ReplicaSession& session)
      : thread_([this, &session](const std::stop_token& stop) {
          while (!stop.stop_requested() && request_ == 0) {
            std::this_thread::sleep_for(kPollInterval);
            if (const int request = take_signal_request(); request > 0) {
              request_ = request;
              session.leave();
            }
          }
        }) {}

  // The last nonzero result of take_signal_request(), or 0.
  int request() const { return request_; }

 private:
  static constexpr std::chrono::milliseconds kPollInterval{50};
  std::atomic<int> request_{0};
  std::jthread thread_;
};

class ReplicaJob {
 public:
  explicit ReplicaJob(Trainer& trainer)
      : trainer_(trainer),
        options_(session_options(trainer.config())),
        folder_("replica-" + std::to_string(options_.replica)),
        report_(trainer, "batch set by the coordinator", folder_),
        checkpoints_(make_checkpoints(trainer, state_of(trainer))) {
    if (checkpoints_) {
      options_.held = checkpoints_->load();
    }
  }

  int run() {
    ft::ReplicaSession session(
        trainer_.world(), trainer_.engine().named_parameters(),
        state_of(trainer_), [&](std::int64_t step) { update(step, session); },
        options_);
    // `sherd replica drain` needs them, too.
    install_signal_handlers(trainer_.leads());
    // A single rank may get the signal.
    auto leaving = std::make_optional<LeaveSignalWatcher>(session);
    take_steps(session);
    if (checkpoints_) {
      checkpoints_->save(session);
    }
    session.close();
    if (checkpoints_) {
      checkpoints_->wait();
    }
    if (report_.is_open()) {
      report_.finish(session.step(), trainer_.sample(), "");
      say_where_it_saves();
    }
    const double asked = leaving->request();
    leaving.reset();
    int request = 0;
    for (const auto& of_rank : trainer_.world().all_gather({asked})) {
      request = std::max(request, static_cast<int>(of_rank[0]));
    }
    const bool left = request > 0 && session.step() < trainer_.last_step();
    trainer_.close();
    return left
        ? kKilledBy + (request > kSaveRequest ? signal_of(request) : SIGTERM)
        : 0;
  }

 private:
  std::optional<ft::TrainingStep> begin_step(ft::ReplicaSession& session) {
    try {
      return session.begin_step();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) {
        throw;
      }
      std::string differences;
      try {
        differences = differences_from_checkpoint(trainer_);
      } catch (const Error&) {
        // The checkpoint cannot be read: what the coordinator said is all there is.
      }
      throw Error(error.what() + differences);
    }
  }

  void take_steps(ft::ReplicaSession& session) {
    while (const auto plan = begin_step(session)) {
      if (checkpoints_) {
        checkpoints_->save_if_due(session, *plan);
      }
      if (plan->step > trainer_.last_step()) {
        break;
      }
      if (!report_.is_open()) {
        open_report(plan->step - 1);
      }
      if (auto record = take_part(*plan, session)) {
        record->grad_norm = update_.grad_norm;
        record->lr = update_.lr;
        record->loss_scale = update_.loss_scale;
        record->skipped = update_.skipped;
        report_.add(*record);
      }
    }
  }

  void say_where_it_saves() {
    if (checkpoints_) {
      report_.say(
          "saved  in " + trainer_.config().run +
          "/checkpoints; with --run-dir, repeat the command to continue");
    }
  }

  void update(std::int64_t step, const ft::ReplicaSession& session) {
    const auto& scaling = trainer_.config().lr_scaling;
    update_.lr = trainer_.learning_rate(step - 1);
    if (scaling != "none") {
      update_.lr *= ft::learning_rate_factor(
          scaling == "linear" ? ft::LearningRateScaling::kLinear
                              : ft::LearningRateScaling::kSquareRoot,
          session.samples_of_update(), options_.samples_full);
    }
    trainer_.engine().update(update_);
  }

  void open_report(std::int64_t first) {
    const auto run = trainer_.run_path();
    std::filesystem::create_directories(run + "/" + folder_);
    write_flight_records(trainer_.world(), run + "/" + folder_);
    report_.open(run, first);
  }

  // Nullopt if the step was not made, or was made by others.
  std::optional<StepMetrics> take_part(
      const ft::TrainingStep& plan, ft::ReplicaSession& session) {
    StepMetrics record{.step = plan.step};
    const StepMeter meter;
    std::vector<std::int64_t> numbers;
    for (const auto& samples : plan.samples) {
      for (auto number = samples.begin; number < samples.end; ++number) {
        numbers.push_back(number);
      }
    }
    if (!numbers.empty()) {
      record.loss = trainer_.forward_backward(
          numbers.front(), trainer_.batches().samples(numbers),
          [&] { session.last_backward(); });
    }
    if (!session.finish_step() || numbers.empty()) {
      return std::nullopt;
    }
    trainer_.complete(
        record, meter.measure(), plan.replica_samples, /*request=*/0);
    return record;
  }

  Trainer& trainer_;
  ft::SessionOptions options_;
  const std::string folder_;  // Inside the run's.
  RunReport report_;
  std::unique_ptr<ft::ReplicaCheckpoints> checkpoints_;
  StepMetrics update_;  // The results of the last update.
};

}  // namespace

int train_replica(Trainer& trainer) { return ReplicaJob(trainer).run(); }

}  // namespace sherd::tools
