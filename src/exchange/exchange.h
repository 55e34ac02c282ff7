// SPDX-License-Identifier: Apache-2.0
//
// Exchange is the only interface between the engine and the movement of bytes. It owns three
// memories: shards (for its whole life), unsharded units (while they are whole) and gradient slots
// (from the first gradient of a unit to its reduction). The engine decides when; the exchange knows
// nothing of modules, and the engine nothing of transports. One contract suite tests every
// implementation.
//
// Thread rule: one caller at a time (the engine's lock), including the destructor. Which calls are
// allowed when: docs/design/exchange.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/flight_recorder.h"
#include "base/status.h"
#include "plan/flat_layout.h"
#include "plan/unit_id.h"

namespace sherd::exchange {

using plan::UnitId;

// Where the parameters, gradients and optimizer state live on the shard axis.
enum class ModelPlacement {
  kShard,      // Each rank owns its slice of every flat.
  kReplicate,  // Each rank owns everything; gradients are all-reduced.
};

// One contiguous buffer of a unit, whose parameters have the same dtypes and are all trainable or
// all not.
struct FlatSpec {
  plan::FlatLayout
      layout;  // Its cuts say who reduces what, in both placements.
  std::vector<std::string> names;   // By parameter of the layout.
  std::vector<std::string> shapes;  // For messages, e.g. "[256, 64]".
  // The dtype of shards and, unless narrow_gradients, of their gradients.
  c10::ScalarType dtype = c10::ScalarType::Float;
  // Mixed precision: the dtype of whole units and gathers; unset: dtype.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  // The dtype of gradient slots and of what ranks send of them; unset: that of whole units.
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  // Sharded gradients have the dtype of slots.
  bool narrow_gradients = false;
  // Whether its parameters can have gradients, now or once they are thawed.
  bool trainable = true;
  // Its parameters have no gradients at first. There is memory for gradients, but none of its pages
  // is touched before they come.
  bool starts_frozen = false;
  // Gathers send shards coded by a ShardCoder, so whole units have other values than shards.
  bool coded = false;

  c10::ScalarType shard_dtype() const { return dtype; }
  c10::ScalarType gradient_dtype() const {
    return narrow_gradients ? slot_dtype() : dtype;
  }
  c10::ScalarType unsharded_dtype() const {
    return param_dtype.value_or(dtype);
  }
  c10::ScalarType slot_dtype() const {
    return reduce_dtype.value_or(unsharded_dtype());
  }
  bool is_cast() const { return unsharded_dtype() != dtype; }
};

struct UnitSpec {
  std::string name;
  std::vector<FlatSpec> flats;
};

struct ModelSpec {
  std::vector<UnitSpec> units;
  ModelPlacement placement = ModelPlacement::kShard;
  // Without its own shards there are no whole units; without sharded gradients every reduction says
  // where its sum goes (ReduceOptions::into).
  bool own_shards = true;
  bool own_gradients = true;
  // If the exchange can do it, sharded gradients lie where every rank of the shard axis sees them:
  // ShardMemory::whole_gradient.
  bool share_gradients = false;
  // For a model on a device: shards and their gradients lie in pinned host memory (CPU offload).
  // They are copied to the device and back when units are gathered and reduced; so are the
  // destinations of sums (ReduceOptions::into). REQUIRES: kShard, or no shards of its own.
  bool shards_on_host = false;
  // With shards_on_host: the host writes shards, and reads sums, as soon as it may. So it waits for
  // the device at each use of a unit, and at the end of backward.
  bool host_writes_shards = true;
  bool host_reads_sums = true;
  // No reduction adds to a sharded gradient except in late rounds, so an exchange may use that
  // memory as the first slot of a backward.
  bool overwrites_gradients = false;
  // Further lines for describe().
  std::vector<std::string> agreed = {};
  // The initial limit of the bytes of unsharded units; 0: no limit. Must be the same on all ranks.
  std::int64_t unsharded_bytes_max = 0;

  const UnitSpec& unit(UnitId id) const {
    return units[static_cast<std::size_t>(id)];
  }
  bool replicates() const { return placement == ModelPlacement::kReplicate; }
};

// The bytes of a flat and, as one slot, of a whole unit; flats start at multiples of 128 bytes.
std::int64_t flat_bytes(const FlatSpec& flat);
std::int64_t unit_bytes(const UnitSpec& unit);
// The elements of a flat that a rank keeps: its slice or, if replicated, all of them.
plan::ElementRange owned(
    const ModelSpec& model, UnitId unit, int flat, int rank);
// Whether whole units of it have other values than shards.
bool is_cast(const UnitSpec& unit);
// Whether no parameter of the unit trains at first, so no gradient of it is expected.
bool starts_frozen(const UnitSpec& unit);
std::size_t trainable_parameters(const UnitSpec& unit);
// Where each flat begins in a slot of the unit if flats have these dtypes; the last entry is where
// the slot ends.
using FlatDtype = c10::ScalarType (FlatSpec::*)() const;
std::vector<std::int64_t> flat_offsets(const UnitSpec& unit, FlatDtype dtype);
// Whether on the CPU the gradient of the flat's parameter may be given as a tensor of its own
// instead of being written into the slot. That is so for large parameters, where a copy costs more
// than a message. The same on every rank.
bool may_bypass_slot(const FlatSpec& flat, int parameter);
// The lines, in order, on which ranks must agree.
std::vector<std::string> describe(const ModelSpec& model);

// 1-D tensors over the elements of a flat that this rank owns; their addresses never change.
// `gradient` is undefined if the flat is not trainable.
struct ShardMemory {
  at::Tensor shard;
  at::Tensor gradient;
  // If requested and possible: the flat's sharded gradient on all ranks, of which `gradient` is a
  // part; otherwise undefined. The exchange writes only this rank's part; others see, after a step
  // of all ranks, what was written before it.
  at::Tensor whole_gradient = {};
};

enum class Precision {
  kParameter,  // Whole units have FlatSpec::unsharded_dtype().
  kFull,       // Whole units have the dtype of shards.
};

struct UnshardOptions {
  // In backward, ranks whose gradients differ may ask for different units; otherwise that is a
  // mismatch.
  bool in_backward = false;
  // All ranks follow one plan, so this gather comes next on each rank that has not left it. Shards
  // may then be sent before ranks have agreed, even in backward.
  bool planned = false;
  // The limit of the bytes of unsharded units from now on; 0: no limit.
  std::int64_t unsharded_bytes_max = 0;
  // In full precision, units that are otherwise cast do not count for that limit.
  Precision precision = Precision::kParameter;
};

// What to do with the sum of a replica: it is added up over all replicas.
struct SumAcross {
  // Over the ranks that own the same shards, one in each replica. The model outlives the exchange.
  const ModelSpec* model = nullptr;
  double scale = 1.0;
  // By flat: whether to add to what is in `into`, and where the result goes. The sum of the replica
  // may be there, too.
  std::vector<bool> accumulate;
  std::vector<at::Tensor> into;
  std::uint64_t backward =
      0;  // Its number; late rounds belong to the same backward.
};

struct ReduceOptions {
  // Multiplies the sum over ranks: 1 / ranks for a mean.
  double scale = 1.0;
  // By flat: add to the sharded gradient instead of overwriting it.
  std::vector<bool> accumulate;
  // By trainable parameter of the unit, flat after flat: whether it has a gradient here.
  std::vector<bool> used;
  // By trainable parameter, or empty: a gradient that is not in the slot, 1-D, contiguous, unchanged
  // until end_backward(). On the CPU it has the slot's dtype, and the parameter is sent by itself.
  // Undefined: the gradient is in the slot.
  std::vector<at::Tensor> gradients;
  // By flat, or empty: where the sum goes instead of ShardMemory::gradient. It is like that one,
  // and nobody else uses it until end_backward(). It may be one of `gradients`. Undefined if
  // frozen.
  std::vector<at::Tensor> into;
  // By trainable parameter, or empty: takes the sum of this rank's part of the parameter instead of
  // ShardMemory::gradient, if any rank has a gradient, in consecutive blocks from `begin` 0 on.
  // Called once every rank has started this reduction; may write the shard. Does not accumulate
  // over backwards. REQUIRES: takes_sinks(), and a parameter that is sent by itself.
  using GradientSink =
      std::function<void(std::int64_t begin, const at::Tensor& sum)>;
  std::vector<GradientSink> sinks;
  // Sums only over the shard axis, and keeps the sum for the next reduction of this unit that is
  // not partial; until then the parameters count as unused. REQUIRES: a replicate axis.
  bool partial = false;
  // What a device does with the sum over this rank's replica: as soon as every rank of the replica
  // can start it, it sums that over replicas, in one order of units on all ranks. REQUIRES:
  // DeviceBackends::across.
  std::optional<SumAcross> across;
  // The limit of reductions in flight, including this one: start_reduce() waits for older ones to
  // end. It does not wait for ever, because peers that do other things first may need this rank to
  // continue; after room_wait() there is no limit for the rest of this backward. 0: no limit.
  int under_way_max = 0;
  // Waits for that room as long as the deadline allows. REQUIRES: all patient ranks start their
  // reductions in the same order, and some rank is not patient.
  bool patient = false;

  // The one of `gradients` of this trainable parameter; undefined if there is none, as for -1.
  at::Tensor gradient(int parameter) const {
    return parameter >= 0 && parameter < static_cast<int>(gradients.size())
        ? gradients[static_cast<std::size_t>(parameter)]
        : at::Tensor();
  }

  // How long start_reduce() waits for room. If patient, transfers have deadlines of their own,
  // after which there is room, so a day stands for no limit.
  std::chrono::milliseconds room_wait() const {
    return patient ? std::chrono::hours(24) : std::chrono::seconds(1);
  }
};

struct BackwardEnd {
  // Empty, or why this rank gave the backward up. It must still have reduced every unit, with
  // zeros.
  std::string aborted;
  // `aborted` is a whole sentence that this rank received from another one.
  bool relayed_from_peer = false;
  // By unit: gradients came after its reduction and need one more round.
  std::vector<bool> late;
  // This rank gathered other units than planned.
  bool departed = false;
  // A digest of which units are whole on this rank.
  std::uint64_t whole_units = 0;
  // This rank has hooks of slices, in which an optimizer may make its step.
  bool has_hooks = false;
  // By unit, or empty: further marks like ReduceOptions::used.
  std::vector<std::vector<bool>> used = {};
  // Starts reductions while this rank already assists others that still gather; may be empty.
  std::function<Status()> reduce_meanwhile = nullptr;
};

struct BackwardOutcome {
  // By unit, by trainable parameter: whether some rank had a gradient.
  std::vector<std::vector<bool>> used;
  // By unit: whether some rank needs one more round.
  std::vector<bool> late;
  // Some rank departed, or ranks gathered different units or have others whole.
  bool diverged = false;
  bool has_hooks = false;  // Whether some rank has hooks.
};

enum class ScalarReduceOp {
  kSum,
  // A sum in which ranks with equal shards count once: for sums over elements.
  kSumOverOwners,
  kMax,
  kSame,  // 1 if every rank has the same number, otherwise 0.
};

struct ExchangeCounters {
  std::int64_t unshards = 0;
  std::int64_t unsharded_bytes = 0;    // Bytes of units made whole.
  std::int64_t gather_sent_bytes = 0;  // Bytes sent for that.
  std::int64_t reduces = 0;
  std::int64_t reduces_under_way_peak = 0;
  std::int64_t slot_bytes = 0;  // Allocated now for unsharded units.
  std::int64_t slot_bytes_peak = 0;
  std::int64_t gradient_bytes = 0;  // Allocated now for gradient slots.
  std::int64_t gradient_bytes_peak = 0;
  std::int64_t copied_shard_bytes = 0;  // Beside those of shard_memory().
  bool memory_from_backend = false;
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Collective; the first call, once. Fails on every rank if ranks differ in the model, naming the
  // first difference and the ranks.
  [[nodiscard]] virtual Status open(const ModelSpec& model) = 0;

  // Once per flat, before the first unshard. Filled with zeros.
  virtual ShardMemory shard_memory(UnitId unit, int flat) = 0;

  // Starts to make a unit whole. REQUIRES: not whole; there is room for it under
  // unsharded_bytes_max.
  [[nodiscard]] virtual Status start_unshard(
      UnitId unit, const UnshardOptions& options) = 0;

  // Returns where each flat of the unit lies; valid until reshard(). Collective in what it waits
  // for. A failure closes the exchange.
  [[nodiscard]] virtual Result<std::vector<void*>> wait_for_unshard(
      UnitId unit) = 0;

  // Drops a whole unit. Never waits.
  virtual void reshard(UnitId unit) = 0;

  // A backward runs on this thread. From now on until end_backward() its large gradients may be made
  // where other ranks can read them. May be called again.
  virtual void begin_backward() {}

  // Returns memory for the unit's gradients: one 1-D tensor per flat (undefined if not trainable).
  // Its content is undefined; the engine fills all of it, padding with zeros, except what it passes
  // as ReduceOptions::gradients. Never waits for a peer. Returns the same until start_reduce().
  virtual std::vector<at::Tensor> gradient_slot(UnitId unit) = 0;

  // Passes the slot on to be summed over ranks, in rank order and in fp32, into
  // ShardMemory::gradient. All ranks reduce the same units, each once per backward (plus agreed
  // late rounds), in any order. Waits only as options.under_way_max says.
  [[nodiscard]] virtual Status start_reduce(
      UnitId unit, const ReduceOptions& options) = 0;

  // Collective: returns when every reduction of this backward is complete here and every rank has
  // come. Fails with kAborted, naming rank and reason, if any rank gave up; the exchange stays
  // usable, and sharded gradients are undefined.
  [[nodiscard]] virtual Result<BackwardOutcome> end_backward(
      const BackwardEnd& end) = 0;

  // Announces that shards have new values: whole units of earlier generations are stale, and
  // replicated ones are refreshed. Called on every rank with the same generation, which differs
  // from all before. What gathers send is cast once per generation. May wait for peers.
  [[nodiscard]] virtual Status publish(std::uint64_t generation) = 0;

  // Collective, in place: reduces a few contiguous fp64 numbers, with the same bits on every rank.
  [[nodiscard]] virtual Status all_reduce(
      const at::Tensor& values, ScalarReduceOp op) = 0;

  // Between two steps: the host waits until the device has finished its queued work, and no later
  // work waits for an earlier moment. Does nothing on the CPU.
  virtual void synchronize() {}

  // Does what can be done without waiting. Returns the units whose sums were completed here since
  // the last call; for replicated units, the parts of other ranks may still be missing. On a
  // device, these sums come before the work that its current stream is given next.
  virtual std::vector<UnitId> progress() = 0;

  // Ends the exchange: every later call fails. With a failure as `reason`, later calls fail with
  // it, and peers that wait for this rank fail at once. With success, this rank has finished in
  // order; peers may still be receiving what it sent. Only the first reason counts. Idempotent.
  virtual void close(const Status& reason) = 0;

  // Whether every rank reads every unit in place: whole units then need no memory, and a rank may
  // use units that others do not.
  virtual bool one_sided() const { return false; }

  // Whether reductions may have sinks (ReduceOptions).
  virtual bool takes_sinks() const { return false; }

  virtual const ExchangeCounters& counters() const = 0;

  // The log into which its events are recorded, so that the engine can add its own; by default
  // nothing is recorded.
  virtual FlightLog log() const { return {}; }
};

// Collective: what Exchange::all_reduce() makes of these numbers.
[[nodiscard]] Result<std::vector<double>> all_reduce(
    Exchange& exchange, std::vector<double> values, ScalarReduceOp op);

}  // namespace sherd::exchange
