// SPDX-License-Identifier: Apache-2.0
//
// Fills in the part of a ShardReport about one unit. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <sherd/fsdp/fully_shard.h>
#include "base/flight_recorder.h"

namespace sherd::fsdp {

// Adds what this rank has done with the unit to the report.
void add_use(UnitReport& report, std::int64_t visits, const UnitTimes& times);

}  // namespace sherd::fsdp
