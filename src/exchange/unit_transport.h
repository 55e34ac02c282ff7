// SPDX-License-Identifier: Apache-2.0
//
// UnitTransport is what CollectiveExchange, which makes ranks agree, leaves to
// others: the memory of shards, whole units and gradients, and moving their
// bytes. By messages alone (message_carrier.h), or by memory inside a host and
// messages between hosts (host_carrier.h). Made when the ranks' models are
// known to be equal. Thread rule: one thread, save gather(), of the thread that
// gathers. docs/design/exchange.md
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "exchange/exchange.h"
#include "world/transport.h"

namespace sherd::exchange {

// What all ranks have agreed to do.
struct AgreedGather {
  UnitId unit = 0;
  Precision precision = Precision::kParameter;
  std::uint64_t generation = 0;  // Of the shards.
  std::vector<bool> wanted;      // By rank: whether it gets the unit.
  std::string what;              // For messages.
};

// Where a whole unit lies for this rank: one 1-D tensor per flat, known at the
// latest when its gather has ended. Of the thread that gathers until then.
struct UnshardedUnit {
  Precision precision = Precision::kParameter;
  std::vector<at::Tensor> flats;
};

class UnitTransport {
 public:
  virtual ~UnitTransport() = default;

  virtual ShardMemory shard(UnitId unit, int flat) const = 0;

  // For a unit that is about to be gathered; a replicated one is whole at once.
  virtual std::shared_ptr<UnshardedUnit> open_unit(
      UnitId unit, const UnshardOptions& options, std::uint64_t generation) = 0;
  // Every rank makes the same calls in the same order. `place` is null where
  // the unit is not wanted; where it is, it is whole afterwards.
  [[nodiscard]] virtual Status gather(
      const AgreedGather& gather, UnshardedUnit* place) = 0;
  virtual void drop_unit(UnitId unit, const UnshardedUnit& place) = 0;
  // Replicated units that are whole follow their shards.
  virtual void publish(std::uint64_t generation) = 0;

  // As in Exchange.
  virtual std::vector<at::Tensor> gradient_slot(UnitId unit) = 0;
  virtual void start_reduce(UnitId unit, const ReduceOptions& options) = 0;
  // Takes memory back, tells the first failure so far. Never waits.
  [[nodiscard]] virtual Status progress() = 0;
  // The units whose sums were made here since it was last asked.
  virtual std::vector<UnitId> take_ended() = 0;
  // Waits until all that was started is done here.
  [[nodiscard]] virtual Status finish() = 0;
  virtual bool reducing() const = 0;
  // The next reduction of a unit is none of a late round.
  virtual void backward_ended() {}

  // Ends what was started; when it returns, gradients and what they are summed
  // into are neither read nor written any more. REQUIRES: the transports were
  // abandoned.
  virtual void abandon(const Status& why) = 0;
  virtual void add_to(ExchangeCounters& counters) const = 0;
};

// Collective over the transports' ranks. The model outlives the unit_transport, which keeps
// the transports until it has ended.
using MakeUnitTransport = std::function<Result<std::unique_ptr<UnitTransport>>(
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce)>;

}  // namespace sherd::exchange
