// SPDX-License-Identifier: Apache-2.0
//
// Fully sharded data parallel training of an unmodified module: parameters, gradients and optimizer
// state are sharded over the ranks, and a unit of parameters is whole only while it is used.
//
//   auto world = sherd::World::from_environment();
//   auto fsdp = sherd::fully_shard(*model, world);
//   auto adamw = sherd::AdamW(fsdp.named_parameters(), {.learning_rate = 3e-4});
//   model->loss(batch).backward();   // As on one device.
//   fsdp.clip_grad_norm(1.0);
//   adamw.step();
//   adamw.zero_grad();
//
// Mirrors torch.distributed.fsdp.fully_shard (FSDP2) and the paper of PyTorch
// FSDP, arXiv 2304.11277. Concepts: docs/guide/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/fsdp/units.h>
#include <sherd/optim/named_parameters.h>
#include <sherd/world/exchange_kind.h>
#include <sherd/world/world.h>

namespace sherd {

// How much stays whole: each strategy is a byte budget for unsharded units (docs/guide/units.md).
enum class Strategy {
  kFullShard,    // Root unit, the largest visit and one unit ahead.
  kShardGradOp,  // All units: gathered once per step.
  kNoShard,      // Nothing is sharded; gradients are all-reduced.
};

// Mirrors torch.distributed.fsdp.MixedPrecisionPolicy. Integer parameters keep their dtype, and so
// do parameters of modules with running statistics (BatchNorm), whose kernels need fp32. Both
// options change behaviour.
struct MixedPrecision {
  // The dtype of the module's own parameters from fully_shard on, of gathers, and so of forward and
  // backward: kBFloat16, kHalf or kFloat. Activations of another dtype are cast where they meet
  // such a parameter in a matrix product, a norm or the like. Shards, their gradients and optimizer
  // state stay in the dtype the module came with. Unset: that dtype. Costs a cast of the shard a
  // step, and its memory.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  // The dtype in which gradients are sent to their owner, who adds them up in fp32; one of the same
  // three dtypes. Unset: as param_dtype.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
};

// The ranks of a mesh between which optimizer state is sharded, and with it the parameters and
// gradients that an optimizer sees.
enum class OptimizerAxes {
  kShard,  // Those of a replica: replicas hold equal states.
  // All ranks: an optimizer sees 1/W of the elements. Publishing gathers the new values across
  // replicas; in exchange each gradient is sent only to its owner. The memory that a replica
  // gathers from is another 1/F of the parameters.
  kBoth,
};

// All options but `exchange` change behaviour.
struct FullyShardOptions {
  // Which modules are gathered together. Their size costs memory, their number messages.
  units::Policy units = units::children_of_lists();
  // Bytes of unsharded units never exceed the strategy's budget.
  Strategy strategy = Strategy::kFullShard;
  // A budget instead of the strategy's; at least the largest set of units that one operator uses.
  // Not for kNoShard.
  std::optional<std::int64_t> budget_bytes = std::nullopt;
  // Performance only: values are the same either way, bit for bit.
  ExchangeKind exchange = ExchangeKind::kAuto;
  // How many units may have their gradients on the way to their owners at a time. This limits the
  // memory of gradients if backward is faster than the network: backward then waits for the oldest
  // reduction, for at most a second, because ranks that visit units in different orders may need
  // each other. 0: no limit.
  int reductions_under_way_max = 4;
  // Values are the same either way, up to rounding. No effect with one replica. Not for kNoShard.
  OptimizerAxes optimizer_axes = OptimizerAxes::kShard;
  // Parameters and buffers first get the values of rank 0; otherwise ranks must hold equal values.
  // Mirrors FSDP(sync_module_states=True).
  bool sync_module_states = false;
  // Without sync_module_states ranks compare digests of their parameters and buffers, and all of
  // them throw if two differ. This reads the whole module, which takes about 0.15 s per GB, and
  // sends two small messages. Switch it off if you load a checkpoint next, or if buffers are meant
  // to differ.
  bool compare_initial_values = true;
  // Each rank can read whole gradients, as Muon does: sharded gradients are stored in memory that
  // ranks share instead of private memory, at no further cost. All ranks of the shard axis must be
  // on one host with kSharedMemory, and OptimizerAxes must be kShard. Changes nothing if every rank
  // has whole gradients anyway (one rank, kNoShard).
  bool share_gradients = false;
  // Gives a parameter or buffer on the meta device its first value: writes it into `value`, a plain
  // CPU tensor of the module's shape and dtype. Called once for each, on every rank (with
  // sync_module_states on rank 0 alone), in module order, one after another, so that beside the
  // shards one whole parameter is in memory at a time. It must write the same values on every rank.
  // Mirrors FSDP(param_init_fn).
  std::function<void(const std::string& name, const at::Tensor& value)>
      initialise = nullptr;
  // How many consecutive elements of a parameter no cut between ranks may split, by name: a row, a
  // block, all of it. Empty: 1.
  std::function<std::int64_t(const std::string& name, const at::Tensor&)>
      granularity = nullptr;
  // Unset: every parameter, gradient and message has the module's dtype.
  MixedPrecision mixed_precision = {};
};

struct ClipOptions {
  double p = 2.0;  // 1, 2, any positive number, or infinity.
  bool error_if_nonfinite = false;
};

struct SummonOptions {
  // The scope is for reading only: what is written inside it is lost.
  bool read_only = false;
};

// What backwards under no_sync() leave out.
enum class NoSyncAxis {
  kBoth,  // Everything: they exchange nothing.
  // The sum across replicas; gradients are still summed to shards within each replica. The same as
  // kBoth where every rank is a replica, and nothing is left out where there is one replica.
  kReplicate,
};

struct NoSyncOptions {
  NoSyncAxis axis = NoSyncAxis::kBoth;
};

// Figures about the plan that says which units are whole when (docs/design/plan.md). A step reaches
// from one publish to the next.
struct PlanReport {
  std::int64_t steps = 0;
  std::int64_t steps_planned = 0;  // Those that followed a plan throughout.
  std::int64_t plans_made = 0;
  std::int64_t deviations = 0;  // Visits that were not ahead in the plan.
  // What the plan used last predicts for a step.
  std::int64_t gathers = 0;
  std::int64_t gathered_bytes = 0;
  std::int64_t lower_bound_bytes = 0;  // No plan in this budget gathers less.
  std::int64_t tenth_more_saves_bytes = 0;  // With a tenth more budget.
};

struct ShardReport {
  int units = 0;
  std::int64_t budget_bytes = 0;          // 0: none.
  std::int64_t unsharded_bytes_peak = 0;  // What reshard frees, at most so far.
  // Shards of parameters and gradients and, in mixed precision, of casts; with OptimizerAxes::kBoth
  // also what the replica gathers from.
  std::int64_t shard_bytes = 0;
  // Memory of gradients on their way, and with several replicas of those that wait for the sum
  // across them.
  std::int64_t gradient_slot_bytes_peak = 0;
  std::int64_t unshards = 0;         // Units gathered so far.
  std::int64_t unsharded_bytes = 0;  // Their bytes.
  std::int64_t reduces = 0;
  std::int64_t reduces_under_way_peak = 0;
  std::int64_t backwards = 0;  // Synchronised ones.
  PlanReport plan;
};

class ShardingEngine;

// While it lives, every rank has a private full copy of all parameters, readable and writable.
// Every rank makes and ends the scope; ending waits for nobody. Each rank keeps what was written
// into the slice it owns, so all ranks must write the same values. In mixed precision the module
// shows the values that forward sees, and tensor() those of the shards. Elements written through
// either are kept; if both were written, tensor() wins. All other elements keep every bit.
// Backwards, second scopes and optimizer steps inside are errors.
class SummonScope {
 public:
  SummonScope(SummonScope&&) noexcept;
  SummonScope& operator=(SummonScope&&) = delete;
  ~SummonScope();

  // The parameter in full precision, a plain tensor of the module's shape.
  // Throws when there is no such name.
  at::Tensor tensor(const std::string& name) const;

  // Ends the scope now; the destructor does the same.
  void close();

 private:
  friend class FullyShardedDataParallel;
  explicit SummonScope(std::shared_ptr<ShardingEngine> engine);
  std::shared_ptr<ShardingEngine> engine_;
};

// While it lives, backwards do not reduce their gradients, or not entirely.
class NoSyncScope {
 public:
  NoSyncScope(NoSyncScope&&) noexcept;
  NoSyncScope& operator=(NoSyncScope&&) = delete;
  ~NoSyncScope();

 private:
  friend class FullyShardedDataParallel;
  NoSyncScope(std::shared_ptr<ShardingEngine> engine, NoSyncAxis axis);
  std::shared_ptr<ShardingEngine> engine_;
  NoSyncAxis axis_;
};

// The handle of a sharded model. Move-only; keep it as long as the model is used. Thread rule: one
// thread, which may differ from those that use the model, and not while they do.
class FullyShardedDataParallel {
 public:
  FullyShardedDataParallel(FullyShardedDataParallel&&) noexcept;
  FullyShardedDataParallel& operator=(FullyShardedDataParallel&&) noexcept;
  ~FullyShardedDataParallel();

  // This rank's slice of each parameter, 1-D leaves in module order; empty slices are left out.
  // `.grad()` is set when a synchronised backward returns. Returns the same tensors every time.
  std::vector<at::Tensor> parameters() const;
  NamedParameters named_parameters() const;

  // Collective. Scales gradients so that their total p-norm is at most
  // `max_norm`; returns the norm before, the same on every rank. Mirrors
  // torch.nn.utils.clip_grad_norm_.
  double clip_grad_norm(double max_norm, const ClipOptions& options = {});

  // Makes shards that were written by hand or by a foreign optimizer visible; sherd's optimizers
  // call it themselves. Every rank calls it.
  void publish();

  // Collective. Publishes first. Outside the byte budget.
  [[nodiscard]] SummonScope summon_full_parameters(
      const SummonOptions& options = {});

  // Backwards inside the scope exchange no gradients: each rank accumulates its own in full size,
  // and the next backward outside reduces the sum. This saves traffic and costs the memory of all
  // gradients in fp32; without the scope micro-batches accumulate in shards. Every rank makes and
  // ends the scope. If a backward inside throws, every rank drops what was accumulated so far. With
  // one rank `.grad()` is set at once. With {.axis = NoSyncAxis::kReplicate} gradients accumulate
  // in shards, which need a second copy, and the next backward outside sums them across replicas.
  // Mirrors FSDP.no_sync, and FSDPModule's set_requires_gradient_sync and set_requires_all_reduce.
  [[nodiscard]] NoSyncScope no_sync(const NoSyncOptions& options = {});

  // unshard() gathers units as far as the budget allows, reshard() drops all of them. Collective if
  // the exchange is. They are never needed, but useful before a measurement.
  void unshard();
  void reshard();

  ShardReport report() const;

  // Ends sharding: later use of the model is an error. Idempotent.
  void close();

 private:
  friend FullyShardedDataParallel fully_shard(
      torch::nn::Module&, const Mesh&, const FullyShardOptions&);
  explicit FullyShardedDataParallel(std::shared_ptr<ShardingEngine> engine);
  std::shared_ptr<ShardingEngine> engine_;
};

// Collective. Shards `module` in place over the mesh's shard axis; parameter objects stay the same,
// their bytes move. Ranks must hold equal modules with equal values (see compare_initial_values).
// With several replicas (hybrid sharding) each holds the model, and gradients are summed over all
// ranks: replicas keep equal bits. With one rank and without mixed precision nothing is moved and
// nothing costs anything. Throws Error, on every rank where ranks differ, when: the module has no
// parameters or is sharded already; a parameter is not on the CPU; something is on the meta device
// without options.initialise, or that one throws (then the module is lost); a trainable parameter
// is no real floating-point tensor; the budget is below its floor; gradients are to be shared by
// ranks that share no memory; a dtype of mixed_precision is not among fp32, bf16 and fp16, or would
// narrow an fp64 parameter; ranks disagree on names, shapes, dtypes, options or initial values (of
// those that initialise writes only when the module is lost).
FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const Mesh& mesh,
    const FullyShardOptions& options = {});
FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const World& world,
    const FullyShardOptions& options = {});

}  // namespace sherd
