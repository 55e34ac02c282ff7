// SPDX-License-Identifier: Apache-2.0
//
// The flight recorder of a world's rank. Thread rule: as World's getters.
#pragma once

#include <memory>
#include <vector>
#include <sherd/world/world.h>
#include "base/flight_recorder.h"
#include "world/rank_record.h"

namespace sherd::world {

// The recorder into which exchanges over this world record.
std::shared_ptr<FlightRecorder> flight_recorder_of(const World& world);

// For that rank of a world with these records.
std::shared_ptr<FlightRecorder> make_flight_recorder(
    int rank, const std::vector<RankRecord>& records);

}  // namespace sherd::world
