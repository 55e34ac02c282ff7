// SPDX-License-Identifier: Apache-2.0
//
// What a run leaves for `sherd trace`: a profile of some steps, and what ranks did last when one
// fails. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <sherd/world/flight_recorder.h>
#include <sherd/world/world.h>
#include "train/config.h"

namespace sherd::tools {

// Has ranks that fail write to RUN/flight, unless SHERD_FLIGHT_DIR names another folder.
void write_flight_records(const World& world, const std::string& run);

// Takes the profile that --profile asks for: of --profile-steps steps, the first of which comes
// after two others, in which units are gathered without a plan.
class StepProfile {
 public:
  // Throws Error where there is something to profile and one rank alone.
  StepProfile(const World& world, const TrainConfig& config);

  // Before each step. Throws Error, after the last step of the profile, where that cannot be
  // written.
  void begin_step();
  // After the last step of the run: writes what there is of a profile that was not complete.
  void finish();

 private:
  const World world_;
  const std::string folder_;
  const std::int64_t steps_;
  std::int64_t begun_ = 0;  // Steps so far.
  std::optional<Profile> profile_;
};

}  // namespace sherd::tools
