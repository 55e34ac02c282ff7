// SPDX-License-Identifier: Apache-2.0
#include <sherd/ft/replica_checkpoints.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "ckpt/file_system.h"
#include "ckpt/manifest.h"
#include "ckpt/save_protocol.h"
#include "ft/protocol/identity.h"
#include "ft/replica/session/save_schedule.h"

namespace sherd::ft {
namespace {

// How long replicas of one run, which hold the lock alone for a moment, wait for each other. It is
// short: if another run ended meanwhile, this one would replace what that one has saved last.
constexpr Duration kSharingTimeout = std::chrono::seconds(1);

}  // namespace

struct ReplicaCheckpoints::Impl {
  Impl(
      const World& of,
      CheckpointState all,
      const ReplicaCheckpointOptions& given)
      : world(of),
        options(given),
        values(all.values),
        state(std::move(all)),
        saver(
            of,
            given.folder,
            {.asynchronous = true,
             .keep_last = given.keep_last,
             .shared = true}) {}

  void warn(const std::string& message) const {
    if (world.rank() == 0) {
      log_warning(message);
    }
  }

  // The complete checkpoints as rank 0 sees them, newest first. An unreadable folder must not look
  // like one without checkpoints, since the run would then start over.
  std::vector<std::int64_t> steps() const {
    auto found = ckpt::complete_steps(ckpt::ranks_of(world), options.folder);
    found.status().throw_if_failed();
    auto steps = std::move(found).value();
    std::ranges::reverse(steps);
    return steps;
  }

  // The name of the loaded state.
  std::string name_in(const std::string& folder, std::int64_t step) const {
    const auto found = state.values.find(kReplicaState);
    if (found == state.values.end()) {
      SHERD_CHECK(
          step == 0, "[ft] ", folder,
          ": expected a checkpoint of replicas, found one of a run without "
          "them, at step ",
          step);
      return {};
    }
    const auto held = state_named(found->second);
    SHERD_CHECK(
        held.step == step, "[ft] ", folder, ": expected the state of step ",
        step, ", found ", found->second);
    return found->second;
  }

  // The checkpoints of two runs would replace each other. What else is wrong with the folder is
  // noticed when it is saved to.
  void expect_no_other_run(const ReplicaSession& session) {
    if (session.run() == 0 || has_asked) {
      return;
    }
    run = session.run();
    ask();
    has_asked = true;  // A call that was refused asks again.
  }

  void ask() {
    Status status;
    if (world.rank() == 0) {
      auto shared = ckpt::share_folder(options.folder, run, kSharingTimeout);
      if (shared.ok()) {
        place.emplace(std::move(shared).value());
      } else if (shared.status().code() == ErrorCode::kFailedPrecondition) {
        status = {ErrorCode::kInvalidArgument, shared.status().message()};
      }
    }
    ckpt::agree(ckpt::ranks_of(world), status, "sharing a folder")
        .throw_if_failed();
  }

  // If the folder was moved or removed, another run may save into one of that name meanwhile.
  void ask_again_if_moved() {
    if (!any_rank(place && !place->in_place())) {
      return;
    }
    if (world.rank() == 0) {
      log_warning(str(
          "[ft] ", options.folder, " was moved or removed; it is made again"));
      std::error_code ignored;  // Saves tell what is wrong with the folder.
      std::filesystem::create_directories(options.folder, ignored);
    }
    ask();
  }

  bool any_rank(bool here) const {
    const auto all = world.all_gather({here ? 1.0 : 0.0});
    return std::ranges::any_of(
        all, [](const auto& one) { return one.front() > 0; });
  }

  // Waits for a save that is under way. One that failed may be tried again. It has not failed if
  // another replica takes long to write the same or another step.
  void wait() {
    const auto status =
        status_of([&] { saver.wait(); }, ErrorCode::kUnavailable);
    if (status.ok()) {
      return;
    }
    const auto name = std::exchange(saved, {});
    if (status.code() == ErrorCode::kDeadlineExceeded) {
      warn(str("[ft] ", name, " is not saved here: ", status.message()));
      return;
    }
    failure = status;
  }

  void wait_and_warn() {
    const auto name = saved;
    wait();
    if (!failure.ok() && !name.empty()) {
      warn(
          str("[ft] the checkpoint of ", name,
              " failed, and training goes on: ", failure.message()));
    }
  }

  // `name` is the name of the state that the session holds.
  void begin_save(std::int64_t step, const std::string& name) {
    if (name.empty() || name == saved) {
      return;
    }
    if (any_rank(saver.saving())) {
      warn(str(
          "[ft] ", name, " is not saved: ", saved, " is still being written"));
      return;
    }
    wait_and_warn();
    saved.clear();
    failure = {};
    state.values = values;
    state.values[kReplicaState] = name;
    try {
      ask_again_if_moved();
      saver.save(step, state);
      saved = name;
    } catch (const Error& error) {
      failure = Status(error.code(), error.what());
      warn(str("[ft] ", name, " is not saved: ", error.what()));
    }
  }

  const World& world;
  const ReplicaCheckpointOptions options;
  const std::map<std::string, std::string> values;  // The program's values.
  CheckpointState state;
  // The name of the state saved last, or of the loaded one. Empty after a failure.
  std::string saved;
  Status failure;          // That of the last save.
  std::uint64_t run = 0;   // Its number, once it is known.
  bool has_asked = false;  // Whether it was asked for its place in the folder,
  std::optional<ckpt::FolderLock> place;  // which rank 0 holds for life.
  CheckpointSaver saver;
};

ReplicaCheckpoints::ReplicaCheckpoints(
    const World& world,
    CheckpointState state,
    const ReplicaCheckpointOptions& options) {
  SHERD_CHECK(
      !options.folder.empty() && options.save_every >= 0,
      "[ft] expected a folder and save_every of at least 0, found \"",
      options.folder, "\" and ", options.save_every);
  SHERD_CHECK(
      !state.values.contains(kReplicaState),
      "[ft] expected no value of the name ", kReplicaState, ", found one");
  impl_ = std::make_unique<Impl>(world, std::move(state), options);
}

ReplicaCheckpoints::~ReplicaCheckpoints() = default;

std::string ReplicaCheckpoints::load() {
  auto& all = *impl_;
  std::string wrong;  // What is wrong with the newest.
  for (const auto step : all.steps()) {
    const auto folder = str(all.options.folder, "/", ckpt::folder_name(step));
    try {
      load_checkpoint(all.world, folder, all.state);
      all.saved = all.name_in(folder, step);
      return all.saved;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnavailable &&
          error.code() != ErrorCode::kInvalidArgument) {
        throw;
      }
      wrong = wrong.empty() ? error.what() : wrong;
      all.warn(str("[ft] not loaded: ", error.what()));
    }
  }
  SHERD_CHECK_AS(
      kFailedPrecondition, wrong.empty(), "[ft] expected a checkpoint in ",
      all.options.folder, " that can be loaded, found none: ", wrong);
  return {};
}

void ReplicaCheckpoints::save_if_due(
    const ReplicaSession& session, const TrainingStep& step) {
  impl_->expect_no_other_run(session);
  if (saves_before(step, impl_->options.save_every)) {
    session.other_work(
        [&] { impl_->begin_save(step.step - 1, session.state_name()); });
  }
}

void ReplicaCheckpoints::save(const ReplicaSession& session) {
  impl_->expect_no_other_run(session);
  const auto name = session.state_name();
  impl_->wait_and_warn();  // The last save must not be skipped.
  // A replica without a step has come after the end of the run, or leaves before the beginning.
  if (session.step() > 0) {
    impl_->begin_save(session.step(), name);
  }
}

void ReplicaCheckpoints::wait() {
  impl_->wait();
  impl_->failure.throw_if_failed();
}

}  // namespace sherd::ft
