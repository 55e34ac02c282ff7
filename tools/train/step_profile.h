// SPDX-License-Identifier: Apache-2.0
//
// What a run writes for `sherd trace`: a profile of some steps, and what ranks did last when one
// fails. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sherd/world/flight_recorder.h>
#include <sherd/world/world.h>
#include "train/config.h"

namespace sherd::tools {

// Makes failing ranks write to RUN/flight, unless SHERD_FLIGHT_DIR names another folder.
void write_flight_records(const World& world, const std::string& run);

// Takes the profile that --profile requests: of --profile-steps steps, after two others, in which
// units are gathered without a plan.
class StepProfile {
 public:
  // Throws Error if a profile is requested and there is only one rank.
  StepProfile(const World& world, const TrainConfig& config);

  // Called before each step. Throws Error, after the last step of the profile, if the profile
  // cannot be written.
  void begin_step();
  // Called after the last step of the run: writes an incomplete profile.
  void finish();

 private:
  const World world_;
  const std::string folder_;
  const std::int64_t steps_;
  std::int64_t begun_ = 0;  // How many steps have begun.
  std::optional<Profile> profile_;
};

}  // namespace sherd::tools
