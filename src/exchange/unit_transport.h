// SPDX-License-Identifier: Apache-2.0
//
// UnitTransport moves a unit's shards (all-gather) and gradients (reduce-scatter) and owns the
// memory of both. CollectiveExchange makes the ranks agree on what comes next and leaves the rest
// to it, so bytes may move only by messages, or by shared memory inside a host and messages between
// hosts, or gradients through a hook (reduce_hook.h). It is made once the ranks' models are known
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
#include "exchange/reduce_hook.h"
#include "world/transport.h"

namespace sherd::exchange {

struct ShardCoder;  // coded_shards.h

struct UnitGather {
  UnitId unit = 0;
  Precision precision = Precision::kParameter;
  std::uint64_t generation = 0;  // Of the shards.
  bool secondary = false;        // From secondary shards, within each group.
  std::vector<bool> receivers;   // By rank: whether it gets this rank's shard.
  std::string what;              // For messages.
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

  // Prepares a unit for a gather; a replicated unit is whole at once.
  virtual std::shared_ptr<UnshardedUnit> open_unit(
      UnitId unit, const UnshardOptions& options, std::uint64_t generation) = 0;
  // What all ranks have agreed to do, in the same order. `unsharded` is null on a rank that does
  // not want the unit, or has called start_gather() for it; on the others the unit is whole
  // afterwards.
  [[nodiscard]] virtual Status gather(
      const UnitGather& gather, UnshardedUnit* unsharded) = 0;
  // Starts to send this rank's shard and to receive the others' into `unsharded`, which may be
  // null, before ranks have agreed; the caller waits for it. Returns nothing if shards may only
  // move after ranks have agreed, which is the same on all ranks.
  virtual std::optional<world::Transfers> start_gather(
      const UnitGather& /*gather*/, UnshardedUnit* /*unsharded*/) {
    return std::nullopt;
  }
  // Receives and drops what start_gather() of the rank at index `owner` has sent to this rank,
  // which wants another unit.
  [[nodiscard]] virtual Status discard_shard(
      const UnitGather& /*gather*/, int /*owner*/) {
    return {};
  }
  // All ranks have gathered the unit together, so each may keep its secondary shard of it.
  virtual void gathered_by_all(
      const UnitGather& /*gather*/, const UnshardedUnit& /*unsharded*/) {}
  // Whether they have done so for this generation, and keep the shards. The same on every rank.
  virtual bool has_secondary(
      UnitId /*unit*/, std::uint64_t /*generation*/) const {
    return false;
  }
  // The unit is whole, and the caller's thread continues and uses it; if there are streams, its
  // current stream does so.
  virtual void use_unit(UnitId /*unit*/) {}
  // The current stream gets no more work with the unit.
  virtual void drop_unit(UnitId unit, const UnshardedUnit& unsharded) = 0;
  // Replicated units that are whole get the new values of their shards.
  virtual void publish(std::uint64_t generation) = 0;

  // As in Exchange.
  virtual void begin_backward() {}
  virtual std::vector<at::Tensor> gradient_slot(UnitId unit) = 0;
  virtual void start_reduce(UnitId unit, const ReduceOptions& options) = 0;
  // Reductions may begin only once ranks have agreed on them, which they do at each gather. If none has
  // begun since the reduction before the last one, returns the number of a round: the caller lets all
  // ranks agree on it, and says so when it has waited for that.
  virtual std::optional<std::uint64_t> begin_round() { return std::nullopt; }
  virtual void round_is_over(std::uint64_t /*number*/) {}
  // Starts the reductions that all ranks have requested. Called on all ranks, by the thread that
  // gathers.
  [[nodiscard]] virtual Status start_reductions(const std::string& /*what*/) {
    return {};
  }
  // Takes back the memory of reductions that ended, and returns the first failure so far. Never
  // waits.
  [[nodiscard]] virtual Status progress() = 0;
  // The units whose sums were made here since the last call.
  virtual std::vector<UnitId> take_ended() = 0;
  // Waits until everything that was started is done here.
  [[nodiscard]] virtual Status finish() = 0;
  virtual bool reducing() const = 0;
  // As in Exchange.
  virtual void synchronize() {}
  // Backward is over: the next reduction of each unit overwrites its gradient.
  virtual void backward_ended() {}

  // Ends what was started. When it returns, gradients and the destinations of their sums are
  // neither read nor written any more. REQUIRES: the transports were abandoned.
  virtual void abandon(const Status& why) = 0;
  virtual void add_to(ExchangeCounters& counters) const = 0;
};

// Collective over the transports' ranks. The model outlives the result, which keeps the transports
// alive as long as it lives.
using MakeUnitTransport = std::function<Result<std::unique_ptr<UnitTransport>>(
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce)>;

// Flats are sent over the gather transport with this tag and the following ones; smaller tags are
// free for other uses.
inline constexpr int kFlatTag = 2;

struct GatherOptions {
  // Codes what gathers send, except in full precision and from secondary shards.
  std::shared_ptr<const ShardCoder> coder = nullptr;
  // A unit that all ranks have gathered is gathered again within groups of this many neighbours,
  // which must divide the number of ranks, until shards have new values (secondary_shards.h). 0:
  // all ranks gather it again.
  int secondary_ranks = 0;
};

// Each rank sends its shard to every other rank, and its gradients to their owners. Whole units and
// gradients are private to a process. With a `hook`, gradients go to it instead.
std::unique_ptr<UnitTransport> make_message_unit_transport(
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce,
    const GatherOptions& options = {},
    std::optional<ReduceHook> hook = std::nullopt);

// For ranks of several hosts: each host has one shared buffer for a whole unit, into which every
// byte from other hosts is received once, straight from the transport; gradients are summed within
// a host before they leave it. Shards are private to ranks. docs/design/hierarchical.md.
// Collective, under a `name` that is unique in this world. `hosts`: the transports' ranks by host
// (world/host_segment.h). Fails on every rank if one of the hosts does not have the memory.
Result<std::unique_ptr<UnitTransport>> make_hierarchical_unit_transport(
    const World& world,
    const std::string& name,
    const std::vector<std::vector<int>>& hosts,
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce);

}  // namespace sherd::exchange
