// SPDX-License-Identifier: Apache-2.0
//
// A UnitTransport for ranks that each have a device: bytes move by collectives of c10d in streams
// of their own, which wait for each other by events; the host never waits for the device. Ranks
// still agree by messages on the CPU, so ranks that differ fail at once instead of hanging in a
// collective. docs/design/gpu.md
#pragma once

#include <memory>
#include <optional>
#include <c10/core/Device.h>
#include "exchange/coded_shards.h"
#include "exchange/flat_collectives.h"
#include "exchange/stream_sums.h"
#include "exchange/unit_transport.h"

namespace sherd::exchange {

// Two backends over the transports' ranks, so that gathers and reductions need not wait for each
// other.
struct DeviceBackends {
  c10::Device device;
  BackendPtr gather;
  ReduceBackend reduce;
  // Over the ranks that own the same shards in other replicas, which share none of the others.
  std::optional<ReduceBackend> across = std::nullopt;
  GatherOptions gathers = {};
  // Memory of units, shards and gradients is the backends', where they have any.
  bool memory_from_backend = false;
  // Sums of gradients have the bits of those on the CPU, whatever order the backend would choose.
  bool sums_in_rank_order = false;
  // Over this rank's group, for gathers from secondary shards.
  BackendPtr secondary = {};
};

// For make_collective_exchange().
MakeUnitTransport over_devices(DeviceBackends backends);

}  // namespace sherd::exchange
