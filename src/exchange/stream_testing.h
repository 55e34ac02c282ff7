// SPDX-License-Identifier: Apache-2.0
//
// Exchanges of tensors on the checking device between ranks that are threads. Thread rule: each
// rank's thread.
#pragma once

#include <memory>
#include "exchange/collective_exchange.h"
#include "exchange/stream_unit_transport.h"
#include "support/checking_device/thread_backend.h"
#include "support/fake_ranks.h"

namespace sherd::exchange {

// Of all ranks, each on a device of its own.
inline std::unique_ptr<Exchange> make_stream_exchange(
    test::FakeRank& self, test::ThreadNetwork& network, c10::Device device) {
  return make_collective_exchange_with(
      self.network.transport(self.rank, "gather"),
      self.network.transport(self.rank, "reduce"),
      over_devices(
          {.device = device,
           .gather = network.backend(self.rank, "gathers"),
           .reduce = network.backend(self.rank, "reductions")}));
}

}  // namespace sherd::exchange
