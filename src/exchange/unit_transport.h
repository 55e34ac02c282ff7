// SPDX-License-Identifier: Apache-2.0
//
// UnitTransport moves a unit's shards (all-gather) and gradients (reduce-scatter) and owns the memory of
// both. CollectiveExchange makes the ranks agree on what comes next and leaves the rest to it, so that
// bytes may travel by messages alone, or by shared memory inside a host and messages between hosts, or
// gradients by way of a hook (comm_hook_unit_transport.h). It is made once the ranks' models are known
// to be equal. Thread rule: one thread; gather() is called by the thread that gathers.
// docs/design/exchange.md
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <sherd/world/world.h>
#include "exchange/exchange.h"
#include "world/transport.h"

namespace sherd::exchange {

struct ShardCoder;  // coded_shards.h

struct UnitGather {
  UnitId unit = 0;
  Precision precision = Precision::kParameter;
  std::uint64_t generation = 0;  // Of the shards.
  bool secondary = false;  // From secondary shards, inside each group of ranks.
  std::vector<bool> receivers;  // By rank: whether it gets this rank's shard.
  std::string what;             // For messages.
};

// Where a whole unit lies for this rank: one 1-D tensor per flat, known at the latest when its
// gather has ended. Until then only the thread that gathers may use it.
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
  // What all ranks have agreed to do, in the same order. `unsharded` is null on a rank that does not
  // want the unit, or has called start_gather() for it; elsewhere the unit is whole afterwards.
  [[nodiscard]] virtual Status gather(
      const UnitGather& gather, UnshardedUnit* unsharded) = 0;
  // Starts to send this rank's shard and to receive the others' into `unsharded`, which may be null,
  // before ranks have agreed; the caller waits for it. Nothing where shards may only move once they
  // have, on all ranks alike.
  virtual std::optional<world::Transfers> start_gather(
      const UnitGather& /*gather*/, UnshardedUnit* /*unsharded*/) {
    return std::nullopt;
  }
  // Receives what start_gather() of the rank at index `owner` has sent to this one, which wants
  // another unit, and forgets it.
  [[nodiscard]] virtual Status discard_shard(
      const UnitGather& /*gather*/, int /*owner*/) {
    return {};
  }
  // All ranks have gathered the unit together, so that each may keep its secondary shard of it.
  virtual void gathered_by_all(
      const UnitGather& /*gather*/, const UnshardedUnit& /*unsharded*/) {}
  // Whether they have, of this generation, and keep them. The same on every rank.
  virtual bool has_secondary(
      UnitId /*unit*/, std::uint64_t /*generation*/) const {
    return false;
  }
  // The unit is whole, and the caller's thread goes on to use it. With streams: so does its current
  // stream.
  virtual void use_unit(UnitId /*unit*/) {}
  // Its current stream is given no more work with the unit.
  virtual void drop_unit(UnitId unit, const UnshardedUnit& unsharded) = 0;
  // Replicated units that are whole follow their shards.
  virtual void publish(std::uint64_t generation) = 0;

  // As in Exchange.
  virtual std::vector<at::Tensor> gradient_slot(UnitId unit) = 0;
  virtual void start_reduce(UnitId unit, const ReduceOptions& options) = 0;
  // Takes back the memory of reductions that ended and returns the first failure so far. Never
  // waits.
  [[nodiscard]] virtual Status progress() = 0;
  // The units whose sums were made here since the last call.
  virtual std::vector<UnitId> take_ended() = 0;
  // Waits until all that was started is done here.
  [[nodiscard]] virtual Status finish() = 0;
  virtual bool reducing() const = 0;
  // As in Exchange.
  virtual void synchronize() {}
  // Backward is over: the next reduction of each unit overwrites its gradient.
  virtual void backward_ended() {}

  // Ends what was started; when it returns, gradients and what they are summed
  // into are neither read nor written any more. REQUIRES: the transports were
  // abandoned.
  virtual void abandon(const Status& why) = 0;
  virtual void add_to(ExchangeCounters& counters) const = 0;
};

// Collective over the transports' ranks. The model outlives the result, which keeps the transports
// until it has ended.
using MakeUnitTransport = std::function<Result<std::unique_ptr<UnitTransport>>(
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce)>;

// Flats travel over the gather transport with this tag and the following ones; smaller tags are free
// for others.
inline constexpr int kFlatTag = 2;

struct GatherOptions {
  // Codes what gathers carry, save in full precision and from secondary shards.
  std::shared_ptr<const ShardCoder> coder = nullptr;
  // A unit that all ranks have gathered is gathered again inside groups of so many neighbours, which
  // divide the ranks, until shards have new values (secondary_shards.h); 0: by all ranks again.
  int secondary_ranks = 0;
};

// Each rank sends its shard to every other rank, and its gradients to their owners. Whole units and
// gradients are private to a process.
std::unique_ptr<UnitTransport> make_message_unit_transport(
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce,
    const GatherOptions& options = {});

// For ranks of several hosts: each host has one shared buffer for a whole unit, into which every byte
// from elsewhere is received once, straight from the transport; gradients are summed inside a host
// before they leave it. Shards are private to ranks. docs/design/hierarchical.md
// Collective, under a `name` unique in this world. `hosts`: the transports' ranks by host
// (world/hosts.h). Fails on every rank when the memory cannot be had on one of the hosts.
Result<std::unique_ptr<UnitTransport>> make_hierarchical_unit_transport(
    const World& world,
    const std::string& name,
    const std::vector<std::vector<int>>& hosts,
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce);

}  // namespace sherd::exchange
