// SPDX-License-Identifier: Apache-2.0
#include "train/step_profile.h"

#include <cstdio>
#include <cstdlib>
#include <sherd/base/error.h>

namespace sherd::tools {
namespace {

constexpr std::int64_t kStepsBefore = 2;

}  // namespace

void write_flight_records(const World& world, const std::string& run) {
  if (std::getenv("SHERD_FLIGHT_DIR") == nullptr) {
    set_flight_folder(world, run + "/flight");
  }
}

StepProfile::StepProfile(const World& world, const TrainConfig& config)
    : world_(world), folder_(config.profile), steps_(config.profile_steps) {
  if (!folder_.empty() && world.size() == 1) {
    throw Error(
        "--profile: expected several ranks, whose exchange it shows, found "
        "one; PyTorch's profiler shows operators");
  }
}

void StepProfile::begin_step() {
  if (!folder_.empty() && begun_ == kStepsBefore) {
    profile_.emplace(world_);
  } else if (begun_ == kStepsBefore + steps_) {
    finish();
  }
  ++begun_;
}

void StepProfile::finish() {
  if (profile_) {
    try {
      profile_->write(folder_);
      // Training goes on, as it does without a curve.
    } catch (const Error& error) {
      std::fprintf(
          stderr, "sherd train: warning: --profile: %s\n", error.what());
    }
    profile_.reset();
  } else if (!folder_.empty() && begun_ <= kStepsBefore) {
    std::fprintf(
        stderr,
        "sherd train: --profile: the run has ended before its third step\n");
  }
}

}  // namespace sherd::tools
