// SPDX-License-Identifier: Apache-2.0
//
// Fully sharded data parallel training of an unmodified module: parameters,
// gradients and optimizer state are cut over the ranks; a unit of parameters is
// whole only while it is used.
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
#include <sherd/world/exchange_kind.h>
#include <sherd/world/world.h>
#include <sherd/optim/named_parameters.h>
#include <sherd/fsdp/units.h>

namespace sherd {

// How much stays whole. Rows of one table (docs/guide): each is a byte budget
// for unsharded units, and where the three states live.
enum class Strategy {
  kFullShard,    // Root unit, the largest visit and one unit ahead.
  kShardGradOp,  // All units: gathered once per step.
  kNoShard,      // Nothing is sharded; gradients are all-reduced.
};

// As torch.distributed.fsdp.MixedPrecisionPolicy. Parameters that are no
// floating-point numbers stay as they are, and so do those of modules with
// running statistics (BatchNorm), whose kernels need fp32.
struct MixedPrecision {
  // Behaviour. Of the module's own parameters from fully_shard on, of gathers,
  // and so of forward and backward: kBFloat16, kHalf or kFloat. Activations of
  // another dtype are cast where they meet such a parameter in a matrix product,
  // a norm or the like. Shards, their gradients and optimizer state stay in the
  // dtype the module came with. Unset: that dtype. Costs a cast of the shard a
  // step, and its memory.
  std::optional<at::ScalarType> param_dtype = std::nullopt;
  // Behaviour. Of gradients until they have reached their owner, who adds them
  // up in fp32: the same choice. Unset: as param_dtype.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
};

// Between which ranks of a mesh optimizer state is cut, and with it the
// parameters and gradients that an optimizer sees.
enum class OptimizerAxes {
  kShard,  // Those of a replica: replicas hold equal ones.
  // All: an optimizer sees 1/W of the elements. They are gathered across replicas
  // when they are published, which gradients make up for by crossing once; what a
  // replica gathers from stays beside, 1/F of the parameters.
  kBoth,
};

struct FullyShardOptions {
  // Behaviour. Which modules are gathered together; costs memory in their
  // size, messages in their number.
  units::Policy units = units::children_of_lists();
  // Behaviour. Bytes that resharding can free never exceed what it says.
  Strategy strategy = Strategy::kFullShard;
  // Behaviour. Instead of the strategy's: bytes of unsharded units at most; at
  // least the largest set of units that one operator uses. Not for kNoShard.
  std::optional<std::int64_t> budget_bytes = std::nullopt;
  // Performance. Same values either way, bit for bit.
  ExchangeKind exchange = ExchangeKind::kAuto;
  // Behaviour. Units whose gradients are on their way to their owners at a time;
  // bounds the memory of gradients where backward is faster than the network,
  // and then has to wait for the oldest. Not for ever, as ranks that visit units
  // in different orders may need each other: a backward that has waited a second
  // goes on without a limit. 0: none.
  int reductions_under_way_max = 4;
  // Behaviour. Same values either way, up to rounding; the same with one replica.
  // Not for kNoShard.
  OptimizerAxes optimizer_axes = OptimizerAxes::kShard;
  // Behaviour. Parameters and buffers get rank 0's values first; otherwise
  // ranks must hold equal ones. Mirrors FSDP(sync_module_states=True).
  bool sync_module_states = false;
  // Behaviour. Without sync_module_states ranks compare digests of their
  // parameters and buffers, and all throw where two differ. Costs a reading of
  // the module, about 0.15 s a GB, and two small messages. Off: for ranks that
  // load a checkpoint next, or whose buffers are to differ.
  bool compare_initial_values = true;
  // Behaviour. Each rank can read whole gradients, as Muon does: where ranks share
  // memory, sharded gradients lie there instead of in private memory, and cost
  // nothing more. Expects the ranks of the shard axis to be on one host and to
  // exchange by kSharedMemory, and OptimizerAxes::kShard. Changes nothing where
  // every rank has whole gradients anyway (one rank, kNoShard).
  bool share_gradients = false;
  // Behaviour. Gives a parameter or buffer on the meta device its first value:
  // writes it into `value`, a plain CPU tensor of the module's shape and dtype.
  // Called once for each, on every rank, in module order, one after another:
  // beside the shards one whole parameter is in memory, not the model. The
  // same values on every rank; with sync_module_states rank 0 alone is asked.
  // Unset: whoever would be asked has none. Mirrors FSDP(param_init_fn).
  std::function<void(const std::string& name, const at::Tensor& value)>
      initialise = nullptr;
  // Behaviour. Elements of a parameter that no cut between ranks may split,
  // by name: a row, a block, all of it. Empty: 1.
  std::function<std::int64_t(const std::string& name, const at::Tensor&)>
      granularity = nullptr;
  // Behaviour. Unset: every parameter, gradient and message as the module has
  // it.
  MixedPrecision mixed_precision = {};
};

struct ClipOptions {
  double p = 2.0;  // 1, 2, any positive number, or infinity.
  bool error_if_nonfinite = false;
};

struct SummonOptions {
  // What is written inside the scope is lost; only reading is meant.
  bool read_only = false;
};

// What backwards under no_sync() leave out.
enum class NoSyncAxis {
  kBoth,  // They exchange nothing.
  // They sum gradients to shards within each replica, but not across replicas.
  // As kBoth where every rank is a replica; nothing is left out where there is
  // one replica.
  kReplicate,
};

struct NoSyncOptions {
  NoSyncAxis axis = NoSyncAxis::kBoth;
};

// Of the plan that says which units are whole when; a step reaches from one
// publish to the next. Docs: docs/design/plan.md.
struct PlanReport {
  std::int64_t steps = 0;
  std::int64_t steps_planned = 0;  // From the first visit to the last.
  std::int64_t plans_made = 0;
  std::int64_t deviations = 0;  // Visits that were not ahead in the plan.
  // Of the plan used last, per step.
  std::int64_t gathers = 0;
  std::int64_t gathered_bytes = 0;
  std::int64_t lower_bound_bytes = 0;  // No plan in this budget gathers less.
  std::int64_t tenth_more_saves_bytes = 0;  // With a tenth more budget.
};

struct ShardReport {
  int units = 0;
  std::int64_t budget_bytes = 0;          // 0: none.
  std::int64_t unsharded_bytes_peak = 0;  // What reshard frees, at most so far.
  // For life: parameters, gradients and, in mixed precision, casts; with
  // OptimizerAxes::kBoth also what the replica gathers from.
  std::int64_t shard_bytes = 0;
  // Of gradients on their way, and with several replicas of those that wait for
  // the sum across them.
  std::int64_t gradient_slot_bytes_peak = 0;
  std::int64_t unshards = 0;         // Units gathered so far.
  std::int64_t unsharded_bytes = 0;  // Their bytes.
  std::int64_t reduces = 0;
  std::int64_t reduces_under_way_peak = 0;
  std::int64_t backwards = 0;  // Synchronised ones.
  PlanReport plan;
};

class ShardingEngine;

// Full parameters, readable and writable on every rank while it lives: its own
// private copy. Every rank makes and ends it; ending waits for nobody. Each
// rank takes back the slice it owns, so all must write the same values.
// In mixed precision the module shows the values that forward sees, tensor()
// those of the shards. An element written through either is taken back, where
// through both the one of tensor(); the others keep all their bits.
// No backward, no second scope and no optimizer step inside.
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

// The handle of a sharded model. Move-only; keep it as long as the model is
// used. Thread rule: one thread, which may differ from those that use the
// model, and not while they do.
class FullyShardedDataParallel {
 public:
  FullyShardedDataParallel(FullyShardedDataParallel&&) noexcept;
  FullyShardedDataParallel& operator=(FullyShardedDataParallel&&) noexcept;
  ~FullyShardedDataParallel();

  // This rank's slice of each parameter, 1-D leaves in module order; empty
  // slices are left out. `.grad()` is set when a synchronised backward
  // returns. The same tensors every time.
  std::vector<at::Tensor> parameters() const;
  NamedParameters named_parameters() const;

  // Collective. Scales gradients so that their total p-norm is at most
  // `max_norm`; returns the norm before, the same on every rank. Mirrors
  // torch.nn.utils.clip_grad_norm_.
  double clip_grad_norm(double max_norm, const ClipOptions& options = {});

  // Makes shards written by hand or by a foreign optimizer visible; sherd's
  // optimizers call it. Every rank calls it.
  void publish();

  // Collective. Publishes first. Outside the byte budget.
  [[nodiscard]] SummonScope summon_full_parameters(
      const SummonOptions& options = {});

  // Backwards inside the scope exchange no gradients: each rank adds its own up
  // in full size, and the next backward outside reduces the sum. Saves traffic,
  // costs the memory of all gradients in fp32; without it micro-batches add up
  // in shards. Every rank makes and ends it. An exception in a backward inside
  // drops, on every rank, what no_sync has added up so far. With one rank
  // gradients show at once. With {.axis = NoSyncAxis::kReplicate} gradients add
  // up in shards, which costs those a second time, and the next backward outside
  // sums them across replicas. Mirrors FSDP.no_sync, and of FSDPModule
  // set_requires_gradient_sync and set_requires_all_reduce.
  [[nodiscard]] NoSyncScope no_sync(const NoSyncOptions& options = {});

  // Brings all units in as far as the budget reaches / drops all. Collective
  // where the exchange is. Never needed, sometimes wanted before timing.
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

// Collective. Shards `module` in place over the mesh's shard axis; parameter
// objects stay the same, their bytes move. Ranks must hold equal modules with
// equal values (see compare_initial_values). With several replicas (hybrid sharding) each holds the model,
// and gradients are summed over all ranks: replicas keep equal bits. With one rank and without mixed precision nothing is moved and
// nothing costs anything.
// Throws Error, on every rank where ranks differ, when: the module has no
// parameters or is sharded already; a parameter is not on the CPU; something is
// on the meta device without options.initialise, or that one throws (then the
// module is lost); a trainable parameter is no real floating-point tensor; the
// budget is below its floor; gradients are to be shared by ranks that share no
// memory; a dtype of mixed_precision is not among fp32, bf16
// and fp16, or would narrow an fp64 parameter; ranks disagree on names, shapes,
// dtypes, options or initial values (of those that initialise writes only when
// the module is lost).
FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const Mesh& mesh,
    const FullyShardOptions& options = {});
FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const World& world,
    const FullyShardOptions& options = {});

}  // namespace sherd
