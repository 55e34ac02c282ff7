// SPDX-License-Identifier: Apache-2.0
//
// A UnitTransport whose gradients a communication hook reduces: on a thread beside backward the hook
// gets the gradients of one unit after another and leaves in them what ranks agree on. Everything else
// is left to the inner UnitTransport. It is for gradients on the CPU; on devices StreamReductions calls
// the hook. Thread rule: as UnitTransport.
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

// How a hook reaches the other ranks: tensors on the CPU travel by messages.
struct HookTransport {
  world::Transport& messages;
  DeviceCollectives* collectives = nullptr;  // Null: there is no device.
};

struct ReduceHook {
  std::string name;  // The same on all ranks.
  // `flats`, input and result, are this rank's gradients of the whole unit: 1-D in the slot's dtype,
  // by flat, undefined where frozen, zero where there was none. The result is the mean over ranks, of
  // the elements that this rank owns. Called in the order in which reductions start, which must be
  // the same on all ranks. What it throws is a failure of the exchange.
  std::function<void(
      UnitId unit,
      const std::vector<at::Tensor>& flats,
      const HookTransport& transport)>
      reduce;
  // Where all its work on a device is, so that what it keeps stays in one stream; null: a stream of
  // the exchange's own.
  device::Stream stream = {};
};

// What the hook's mean over so many ranks is multiplied by. Pure.
double scale_of_mean(const ReduceOptions& options, int ranks);

std::unique_ptr<UnitTransport> make_comm_hook_unit_transport(
    const ModelSpec& model,
    std::unique_ptr<UnitTransport> inner,
    std::shared_ptr<world::Transport> transport,
    ReduceHook hook);

}  // namespace sherd::exchange
