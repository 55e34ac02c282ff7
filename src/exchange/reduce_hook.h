// SPDX-License-Identifier: Apache-2.0
//
// A communication hook that reduces gradients instead of the exchange, and what it reaches other
// ranks by. MessageReductions calls it for gradients on the CPU, StreamSums for those on a device.
// Thread rule: the hook is called by one thread at a time.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>
#include "device/stream.h"
#include "exchange/device_collectives.h"
#include "exchange/exchange.h"
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

// The factor for a hook's mean over this many ranks; `scale_of_sum` is that of the sum. The product
// may be 1 but for rounding. A pure function.
inline double scale_of_mean(double scale_of_sum, int ranks) {
  constexpr double kRounding = 1e-12;
  const double scale = scale_of_sum * ranks;
  return std::abs(scale - 1.0) > kRounding ? scale : 1.0;
}

}  // namespace sherd::exchange
