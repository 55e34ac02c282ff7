// SPDX-License-Identifier: Apache-2.0
//
// A UnitTransport whose gradients a communication hook reduces. On a thread beside backward, the
// hook gets the gradients of one unit after another and leaves in them the result for all ranks.
// The inner UnitTransport does everything else. It is for gradients on the CPU; on devices
// StreamReductions calls the hook. Thread rule: as for UnitTransport.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "device/stream.h"
#include "exchange/device_collectives.h"
#include "exchange/unit_transport.h"
#include "world/transport.h"

namespace sherd::exchange {

// How a hook reaches the other ranks: tensors on the CPU are sent by messages.
struct HookTransport {
  world::Transport& messages;
  DeviceCollectives* collectives = nullptr;  // Null without a device.
};

struct ReduceHook {
  std::string name;  // The same on all ranks.
  // `flats`, both input and result, are this rank's gradients of the whole unit: 1-D in the slot's
  // dtype, by flat, undefined if frozen, zero if there was none. The result is the mean over ranks
  // of the elements that this rank owns. Called in the order in which reductions start, which must
  // be the same on all ranks. An exception is a failure of the exchange.
  std::function<void(
      UnitId unit,
      const std::vector<at::Tensor>& flats,
      const HookTransport& transport)>
      reduce;
  // The stream of all its work on a device, so that its state stays in one stream. Null: a stream
  // of the exchange's own.
  device::Stream stream = {};
};

// The factor for a hook's mean over this many ranks. A pure function.
double scale_of_mean(double scale_of_sum, int ranks);

std::unique_ptr<UnitTransport> make_comm_hook_unit_transport(
    const ModelSpec& model,
    std::unique_ptr<UnitTransport> inner,
    std::shared_ptr<world::Transport> transport,
    ReduceHook hook);

}  // namespace sherd::exchange
