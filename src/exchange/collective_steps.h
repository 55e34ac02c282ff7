// SPDX-License-Identifier: Apache-2.0
//
// CollectiveSteps makes ranks agree on each collective step (agreement.h) and does what they agreed
// on: gathers of units that this rank wants or that others want. Thread rule: one thread, the
// worker of a CollectiveExchange. docs/design/exchange.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/flight_recorder.h"
#include "base/status.h"
#include "exchange/agreement.h"
#include "exchange/exchange.h"
#include "exchange/unit_transport.h"
#include "world/transport.h"

namespace sherd::exchange {

class CollectiveSteps {
 public:
  // A unit that this rank is gathering.
  struct WantedUnit {
    UnshardedUnit* unsharded = nullptr;
    // The transfers that were started before ranks agreed, if any.
    std::optional<world::Transfers> early = std::nullopt;
    // Indices of ranks that wanted the same unit when they received this rank's shard.
    std::set<std::size_t> served = {};
  };

  // All of them must outlive it. Requests are sent over `transport`, besides flats.
  CollectiveSteps(
      world::Transport& transport,
      UnitTransport& unit_transport,
      const ModelSpec& model,
      FlightLog log);
  CollectiveSteps(const CollectiveSteps&) = delete;
  CollectiveSteps& operator=(const CollectiveSteps&) = delete;

  // Repeats the request until it is granted, assisting others meanwhile, and then carries it out:
  // if it is for a unit, `wanted` is that unit, which is whole afterwards. Returns kPeerMismatch,
  // on every rank, if ranks did different things.
  [[nodiscard]] Status run_when_agreed(
      CollectiveRequest request, WantedUnit* wanted = nullptr);

  // The gather for the request, with all ranks as receivers.
  UnitGather gather_of(const CollectiveRequest& request) const;

  // Collective; all ranks pass the same size. Returns the bytes of all ranks, by rank.
  [[nodiscard]] Result<std::vector<at::Tensor>> all_gather(
      const at::Tensor& mine, const std::string& what);

  // Whether ranks gathered different units since the last call. The same on every rank.
  bool take_assisted();

 private:
  // What all ranks have sent, by rank.
  struct SentRequests {
    std::vector<CollectiveRequest> requests;
    std::vector<bool> with_shard;  // The unit's shard was sent before.
  };
  Result<SentRequests> all_gather_requests(
      CollectiveRequest& mine, bool with_shard);
  Status settle_early(
      const CollectiveRequest& mine,
      const SentRequests& sent,
      WantedUnit* wanted);
  Status gather(
      const CollectiveRequest& request,
      const std::vector<CollectiveRequest>& requests,
      WantedUnit* wanted);
  Status after_all_know(Status difference);

  world::Transport& transport_;
  UnitTransport& unit_transport_;
  std::vector<std::string> unit_names_;
  const FlightLog log_;
  std::uint64_t sequence_ = 0;
  bool assisted_ = false;
};

}  // namespace sherd::exchange
