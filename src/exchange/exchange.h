// SPDX-License-Identifier: Apache-2.0
//
// Exchange is the only seam between the engine and bytes on the move. It owns three memories: shards (for
// life), unsharded units (while whole) and gradient slots (from the first gradient of a unit to its
// reduction). The engine says when; the exchange knows nothing of modules, the engine nothing of
// transports. One contract suite runs over every implementation.
//
// Thread rule: one caller at a time (the engine's lock), destructor included. Which calls are allowed
// when: docs/design/exchange.md.
#pragma once

#include <chrono>
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

// Where parameters, gradients and optimizer state of the shard axis live.
enum class ModelPlacement {
  kShard,      // Each rank owns its slice of every flat.
  kReplicate,  // Each rank owns everything; gradients are all-reduced.
};

// One contiguous buffer of a unit: same dtype, same trainability.
struct FlatSpec {
  plan::FlatLayout
      layout;  // Its cuts say who reduces what, in both placements.
  std::vector<std::string> names;   // By parameter of the layout.
  std::vector<std::string> shapes;  // For messages, e.g. "[256, 64]".
  // The dtype of shards and, unless narrow_gradients, of their gradients.
  c10::ScalarType dtype = c10::ScalarType::Float;
  // Mixed precision: the dtype of whole units and of what gathers carry; unset: dtype.
  std::optional<c10::ScalarType> param_dtype = std::nullopt;
  // The dtype of gradient slots and of what ranks send of them; unset: as whole units.
  std::optional<c10::ScalarType> reduce_dtype = std::nullopt;
  // Sharded gradients have the dtype of slots.
  bool narrow_gradients = false;
  // Whether its parameters can have gradients, now or once they are thawed.
  bool trainable = true;
  // They need none at first. There is room for gradients, but no page of it is touched before they come.
  bool starts_frozen = false;
  // Gathers carry what a ShardCoder makes of shards, so that whole units have other values.
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
  // Without shards there are no whole units; without sharded gradients every
  // reduction says where its sum goes (ReduceOptions::into).
  bool own_shards = true;
  bool own_gradients = true;
  // Sharded gradients lie where every rank of the shard axis sees them, if the
  // exchange can do that: ShardMemory::whole_gradient.
  bool share_gradients = false;
  // On a device: shards and their gradients lie in pinned memory of the host (CPU offload), and go to
  // the device and come back as units are gathered and reduced; so does all that sums go into
  // (ReduceOptions::into). REQUIRES: kShard, or no shards of its own.
  bool shards_on_host = false;
  // There: the host writes shards, and reads what sums have gone into, as soon as it may. So it waits
  // for the device at each use of a unit, and at the end of backward.
  bool host_writes_shards = true;
  bool host_reads_sums = true;
  // No reduction adds to a sharded gradient but in late rounds: an exchange may
  // give that memory as the first slot of a backward.
  bool overwrites_gradients = false;
  // Further lines for describe().
  std::vector<std::string> agreed = {};
  // Bytes of unsharded units at most, at first; 0: no limit. Ranks must agree.
  std::int64_t unsharded_bytes_max = 0;
};

// Bytes of a flat, and of a unit as one slot, whole: flats start on 128 bytes.
std::int64_t flat_bytes(const FlatSpec& flat);
std::int64_t unit_bytes(const UnitSpec& unit);
// The elements of a flat that a rank keeps: its slice, or, replicated, all.
plan::ElementRange owned(
    const ModelSpec& model, UnitId unit, int flat, int rank);
// Whether whole units of it have other values than shards.
bool is_cast(const UnitSpec& unit);
// Whether no parameter of the unit trains at first, so that no gradient of it is expected.
bool starts_frozen(const UnitSpec& unit);
// Where each flat begins in a slot of the unit, when flats have these dtypes,
// and last where the slot ends.
using FlatDtype = c10::ScalarType (FlatSpec::*)() const;
std::vector<std::int64_t> flat_offsets(const UnitSpec& unit, FlatDtype dtype);
// Whether the gradient of the flat's parameter may be given as a tensor of its
// own instead of being written into the slot: it is large, where a copy costs
// more than a message. The same on every rank.
bool may_bypass_slot(const FlatSpec& flat, int parameter);
// Lines, in order, of what ranks must agree on.
std::vector<std::string> describe(const ModelSpec& model);

// 1-D tensors over the elements this rank owns of a flat; addresses are for
// life. `gradient` is undefined where the flat is not trainable.
struct ShardMemory {
  at::Tensor shard;
  at::Tensor gradient;
  // Where asked for and possible, else undefined: the flat's sharded gradient on
  // all ranks, of which `gradient` is a part. The exchange writes this rank's
  // part only; others see what was written before a step of all ranks, after it.
  at::Tensor whole_gradient = {};
};

enum class Precision {
  kParameter,  // Whole units as FlatSpec::unsharded_dtype() says.
  kFull,       // As shards are.
};

struct UnshardOptions {
  // Ranks whose gradients differ may ask for different units in backward;
  // anywhere else that is a mismatch.
  bool in_backward = false;
  // All ranks follow one plan, so that this gather comes next on each that has
  // not left it. Shards may then move before ranks have agreed, in backward too.
  bool planned = false;
  // Bytes of unsharded units at most from now on; 0: no limit.
  std::int64_t unsharded_bytes_max = 0;
  // In full precision a unit that is cast otherwise lies outside that limit.
  Precision precision = Precision::kParameter;
};

struct ReduceOptions {
  // Multiplies the sum over ranks: 1 / ranks for a mean.
  double scale = 1.0;
  // By flat: add to the sharded gradient instead of overwriting it.
  std::vector<bool> accumulate;
  // By trainable parameter of the unit, flat after flat: has a gradient here.
  std::vector<bool> used;
  // Likewise, or empty: where a gradient lies that is not in the slot, 1-D,
  // contiguous, of the slot's dtype, unchanged until end_backward(). Only of a
  // parameter that travels alone; undefined: in the slot.
  std::vector<at::Tensor> gradients;
  // By flat, or empty: where the sum goes instead of ShardMemory::gradient; as
  // that one, and nobody else's until end_backward(). May be what `gradients`
  // gives. Undefined where frozen.
  std::vector<at::Tensor> into;
  // By trainable parameter, or empty: takes the sum of this rank's part of the
  // parameter instead of ShardMemory::gradient, block after block from `begin`
  // 0 on, if any rank has a gradient. Called once every rank has started this
  // reduction; may write the shard. Adds nothing up over backwards.
  // REQUIRES: takes_sinks(), a parameter that travels alone.
  using GradientSink =
      std::function<void(std::int64_t begin, const at::Tensor& sum)>;
  std::vector<GradientSink> sinks;
  // Sums over the shard axis only, and keeps the sum for the next reduction of
  // this unit that is not partial; until then the parameters count as unused.
  // REQUIRES: a replicate axis.
  bool partial = false;
  // Reductions under way at most, this one included: start_reduce() waits for
  // older ones to end. Not for ever, since peers that do other things first
  // may need this rank to go on; after room_wait() this backward has no limit
  // any more. 0: none.
  int under_way_max = 0;
  // Waits for that room as long as the deadline allows. REQUIRES: every rank that is patient starts
  // its reductions in the same order, and some rank is not.
  bool patient = false;

  // How long start_reduce() waits for room. Transfers have deadlines of their
  // own, after which there is room, so that a day stands for no limit.
  std::chrono::milliseconds room_wait() const {
    return patient ? std::chrono::hours(24) : std::chrono::seconds(1);
  }
};

struct BackwardEnd {
  // Empty, or why this rank gave the backward up. It must have reduced every
  // unit all the same, with zeros.
  std::string aborted;
  // `aborted` is what this rank heard of another, a whole sentence.
  bool relayed_from_peer = false;
  // By unit: gradients came after its reduction and need one more round.
  std::vector<bool> late;
  // This rank gathered other units than was planned.
  bool departed = false;
  // This rank has hooks of slices, which an optimizer may make its step in.
  bool has_hooks = false;
  // By unit, or empty: marks as ReduceOptions::used, beside those.
  std::vector<std::vector<bool>> used = {};
  // Starts reductions while this rank already assists others that still gather; may be empty.
  std::function<Status()> reduce_meanwhile = nullptr;
};

struct BackwardOutcome {
  // By unit, by trainable parameter: some rank had a gradient.
  std::vector<std::vector<bool>> used;
  // By unit: some rank needs one more round.
  std::vector<bool> late;
  // Some rank departed, or ranks gathered different units: they need not have
  // the same units whole.
  bool diverged = false;
  bool has_hooks = false;  // Some rank has.
};

enum class ScalarReduceOp {
  kSum,
  // The same, but ranks with equal shards count once: for sums over elements.
  kSumOverOwners,
  kMax,
  kSame,  // 1 where every rank has the same number, else 0.
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
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Collective, once, first. Fails on every rank when ranks differ in the
  // model, naming the first difference and the ranks.
  [[nodiscard]] virtual Status open(const ModelSpec& model) = 0;

  // Once per flat, before the first unshard. Zero-filled.
  virtual ShardMemory shard_memory(UnitId unit, int flat) = 0;

  // Begins to make a unit whole.
  // REQUIRES: not whole; room for it under unsharded_bytes_max.
  [[nodiscard]] virtual Status start_unshard(
      UnitId unit, const UnshardOptions& options) = 0;

  // Returns where each flat of the unit lies; valid until reshard(). Collective
  // in what it waits for. A failure closes the exchange.
  [[nodiscard]] virtual Result<std::vector<void*>> wait_for_unshard(
      UnitId unit) = 0;

  // Drops a whole unit. Never waits.
  virtual void reshard(UnitId unit) = 0;

  // Room for the unit's gradients: one 1-D tensor per flat (undefined where
  // not trainable), content undefined, the engine fills all of it, padding with
  // zeros, save what it gives as ReduceOptions::gradients. Never waits for a
  // peer; the same until start_reduce().
  virtual std::vector<at::Tensor> gradient_slot(UnitId unit) = 0;

  // Gives the slot to be summed over ranks, in rank order and fp32, into
  // ShardMemory::gradient. On all ranks the same units, each once per backward (plus agreed
  // late rounds), whatever the order. Waits only as options.under_way_max says.
  [[nodiscard]] virtual Status start_reduce(
      UnitId unit, const ReduceOptions& options) = 0;

  // Collective: returns when every reduction of this backward is done here and
  // every rank has come. Failed with kAborted, naming rank and reason, when any
  // rank gave up; the exchange stays usable, sharded gradients are undefined.
  [[nodiscard]] virtual Result<BackwardOutcome> end_backward(
      const BackwardEnd& end) = 0;

  // Shards have new values: whole units of earlier generations are stale,
  // replicated ones are refreshed. Every rank, with the same generation, which
  // differs from those before. What gathers carry is cast once a generation. May
  // wait for peers.
  [[nodiscard]] virtual Status publish(std::uint64_t generation) = 0;

  // Collective, in place: a few contiguous fp64 numbers, the same bits on every
  // rank.
  [[nodiscard]] virtual Status all_reduce(
      const at::Tensor& values, ScalarReduceOp op) = 0;

  // Between two steps: the host waits until the device has done what it was given, and no later work
  // waits for a moment before this one. Nothing on the CPU.
  virtual void synchronize() {}

  // Does what can be done without waiting. Returns the units whose sums are
  // made here since the last call; replicas may lack other ranks' parts yet.
  // On a device: that come before what its current stream is given next.
  virtual std::vector<UnitId> progress() = 0;

  // Ends it: every later call fails. With a failure as `reason`, that is what
  // they fail with, and peers that wait for this rank fail at once. With
  // success this rank is done in order; peers may still be receiving what it
  // sent. The first reason stays. Idempotent.
  virtual void close(const Status& reason) = 0;

  // Every rank reads every unit where it lies: whole units take no room, and a
  // rank may use units that others do not.
  virtual bool one_sided() const { return false; }

  // Whether reductions may have sinks (ReduceOptions).
  virtual bool takes_sinks() const { return false; }

  virtual const ExchangeCounters& counters() const = 0;

  // What its events are recorded in, so that the engine can add its own; by default nothing is.
  virtual FlightLog log() const { return {}; }
};

}  // namespace sherd::exchange
