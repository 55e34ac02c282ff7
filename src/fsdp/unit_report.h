// SPDX-License-Identifier: Apache-2.0
//
// What a ShardReport says about one unit. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <sherd/fsdp/fully_shard.h>
#include "base/flight_recorder.h"

namespace sherd::fsdp {

// Adds to the report what this rank has done with the unit.
void add_use(UnitReport& report, std::int64_t visits, const UnitTimes& times);

}  // namespace sherd::fsdp
