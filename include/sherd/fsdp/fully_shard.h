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
#include <sherd/autograd/join.h>
#include <sherd/ddp/comm_hook.h>
#include <sherd/fsdp/activation_checkpointing.h>
#include <sherd/fsdp/gather_hook.h>
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
  // Which modules are gathered together, and with which options. Their size costs memory, their
  // number messages.
  units::Policy units = units::optional(units::children_of_lists());
  // Bytes of unsharded units never exceed the strategy's budget.
  Strategy strategy = Strategy::kFullShard;
  // A budget instead of the strategy's; at least the largest set of units that one operator uses.
  // Not for kNoShard.
  std::optional<std::int64_t> budget_bytes = std::nullopt;
  // A limit for the resident memory of each process; for a module on a GPU, for what LibTorch's
  // allocator takes of that GPU. Five steps are taken in which all regions of `checkpointing` are
  // recomputed, and units as kFullShard says. Then the choice of what is kept, of activations and of
  // whole units, that takes least time within the limit holds for the rest; report().memory has it.
  // Values are the same either way. With kFullShard or kNoShard, and without
  // budget_bytes. Guide: docs/guide/memory.md.
  std::optional<std::int64_t> memory_bytes = std::nullopt;
  // How many visits before its use a unit may be gathered, in forward and backward, from the second
  // step on. The order is that of the step before, and gathers start where the budget has room, which
  // with kFullShard is for that many of the largest unit. 0: each unit when it is used. Performance
  // only. Replaces set_modules_to_forward_prefetch and set_modules_to_backward_prefetch of FSDP2.
  int prefetch_visits = 1;
  // A unit that was gathered and dropped is gathered again inside groups of so many neighbouring ranks
  // of the shard axis, until parameters have new values: in backward, in further micro-batches and in
  // evaluations. For that each rank keeps 1/secondary_ranks of every unit beside its shards. For a
  // network that is fast inside a host and slow between hosts, with the number of ranks of a host.
  // Divides the shard axis, with kFullShard; values are the same bit for bit. By messages: where all
  // ranks share memory nothing is gathered, and where those of each host do, kShardGradOp does as much.
  // 0: none. Mirrors the int of FSDP2's reshard_after_forward, and hpZ of ZeRO++.
  int secondary_ranks = 0;
  // The regions about which memory_bytes decides: what the model runs its layers with.
  std::optional<ActivationCheckpointing> checkpointing = std::nullopt;
  // Performance only: values are the same either way, bit for bit.
  ExchangeKind exchange = ExchangeKind::kAuto;
  // How many units may have their gradients on the way to their owners at a time. This limits the
  // memory of gradients if backward is faster than the network: backward then waits for the oldest
  // reduction, for at most a second, because ranks that visit units in different orders may need
  // each other. 0: no limit.
  int reductions_under_way_max = 4;
  // Values are the same either way, up to rounding. No effect with one replica. Not for kNoShard.
  OptimizerAxes optimizer_axes = OptimizerAxes::kShard;
  // For a module on a GPU: parameters(), their gradients and with them the optimizer's state lie in
  // pinned memory of the host. Each gather copies this rank's shard to the device, and each reduction
  // its sum back, beside computation; the end of backward waits for the sums, and the optimizer runs
  // on the CPU. With several replicas each sum goes to the device once more, for the sum across, and
  // where a replica is one rank it gathers from itself. For models of which 1/W of parameters and
  // state does not fit a GPU. No effect where parameters are on the CPU. Not for kNoShard or gather
  // hooks. Mirrors CPUOffloadPolicy of FSDP2 and CPUOffload(offload_params=True) of FSDP1.
  bool cpu_offload = false;
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
  // Empty: 1.
  Granularity granularity = nullptr;
  // Unset: every parameter, gradient and message has the module's dtype.
  MixedPrecision mixed_precision = {};
  // What sums of gradients over ranks are divided by. Unset: the number of ranks, which gives the
  // mean; 1 gives the sum. Mirrors FSDPModule.set_gradient_divide_factor.
  std::optional<double> gradient_divide_factor = std::nullopt;
  // Reduces gradients by messages instead of the exchange's mean: with replicas those of a shard,
  // between them, without replicas to shards, which takes a hook that reduces_to_shards(). What it
  // leaves is the mean, or stands for it; gradient_divide_factor applies to that. One object for each
  // handle, hooks of the same name on every rank. No effect with one rank. Mirrors
  // FullyShardedDataParallel.register_comm_hook and FSDPModule.set_all_reduce_hook.
  CommHookPtr hook = nullptr;
  // Decides what travels when units are gathered, by messages. One object for each handle, hooks of
  // the same name on every rank. Costs the memory of what travels of a unit, and of this rank's
  // shards as they are sent. No effect where nothing is gathered.
  GatherHookPtr gather_hook = nullptr;
  // Names of modules, parameters and buffers, or patterns of `*` and `?` as of units::by_name(),
  // that sherd leaves alone: neither compared, nor synchronised, nor sharded, nor reduced, a module
  // with everything in it. Their gradients are the rank's own. Each name must be there. Mirrors
  // ignored_modules of FSDP1 and ignored_params of FSDP2.
  std::vector<std::string> ignored = {};
};

struct ClipOptions {
  double p = 2.0;  // 1, 2, any positive number, or infinity.
  bool error_if_nonfinite = false;
};

struct SummonOptions {
  // The scope is for reading only: what is written inside it is lost.
  bool read_only = false;
  // In mixed precision operators compute with the values of the shards instead of their casts, and
  // activations are cast to those dtypes, e.g. to evaluate in fp32. Parameters still show param_dtype
  // as theirs. Operators must not record gradients. FullyShardedDataParallel::full_precision() does it
  // unit by unit.
  bool full_precision = false;
  // Rank 0 alone has the copies. Other ranks gather along, and hold one unit at a time meanwhile;
  // their parameters stay sharded. Needs read_only. Mirrors rank0_only of FSDP1.
  bool rank0_only = false;
  // Gradients are whole, too: SummonScope::gradient(). Elements written to them are kept, unless
  // read_only; each rank holds a second copy of its sharded gradients for that. Elements written to
  // the gradients of slices meanwhile are kept, too. Unless read_only, clip_grad_norm() and
  // GradScaler::unscale() are errors inside: they would not see what is written to whole gradients.
  // Mirrors with_grads of FSDP1.
  bool with_gradients = false;
  // The name of a module or of a unit: only the units that hold its parameters are whole, those of
  // modules inside it included. A tied parameter counts under its first name. Empty: all units.
  std::string module = {};
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

// Parameters of a unit that have the same dtypes and are all trained or all frozen. They lie in one
// contiguous buffer.
struct FlatReport {
  std::vector<std::string> parameters;
  std::int64_t numel = 0;             // With the padding between parameters.
  at::ScalarType dtype = at::kFloat;  // Of shards and optimizer state.
  at::ScalarType param_dtype = at::kFloat;     // Of whole units and gathers.
  at::ScalarType reduce_dtype = at::kFloat;    // Of gradients on their way.
  at::ScalarType gradient_dtype = at::kFloat;  // Of sharded gradients.
  bool trainable = true;
};

// One unit, as the policy has made it, and what it has cost this rank since fully_shard().
struct UnitReport {
  std::string name;        // "(root)" for the root unit.
  std::int64_t bytes = 0;  // When whole.
  bool keep_whole = false;
  std::vector<FlatReport> flats;
  std::int64_t visits = 0;   // Operators that used it.
  std::int64_t gathers = 0;  // How often it was made whole.
  double gather_s = 0;       // How long that took, beside whatever goes on.
  double waited_s = 0;       // How long operators waited for it.
  // The share of gather_s in which nobody waited. 0 where ranks share memory, and nothing moves.
  double overlap = 0;
};

// What one limit of memory would cost.
struct MemoryChoice {
  std::int64_t limit_bytes = 0;
  std::int64_t peak_bytes = 0;  // The process's.
  std::int64_t budget_bytes =
      0;               // For whole units; 0 where nothing is gathered.
  int recomputed = 0;  // Regions.
  double step_s = 0;
  double lower_bound_s = 0;  // No choice within the limit takes less.
};

// What FullyShardOptions::memory_bytes has led to. Figures are the largest of any rank, measured in the
// second to the fifth step.
struct MemoryReport {
  bool decided = false;  // After the fifth step.
  std::int64_t limit_bytes = 0;
  std::int64_t floor_bytes = 0;  // What a step needs that keeps nothing.
  // What was decided, and what it is to cost.
  std::int64_t peak_bytes = 0;
  std::int64_t budget_bytes = 0;
  int regions = 0;
  int recomputed = 0;
  double step_s = 0;
  double lower_bound_s = 0;
  double last_step_s = 0;  // What the last step took on this rank.
  // What other limits would cost, from the floor to one that keeps everything.
  std::vector<MemoryChoice> choices = {};
};

struct ShardReport {
  int units = 0;
  std::int64_t budget_bytes = 0;          // 0: none.
  std::int64_t unsharded_bytes_peak = 0;  // What reshard frees, at most so far.
  // Shards of parameters and gradients, of what started frozen once it has trained, and, in mixed
  // precision, of casts; secondary shards; with OptimizerAxes::kBoth also what the replica gathers from.
  std::int64_t shard_bytes = 0;
  // Memory of gradients on their way, and with several replicas of those that wait for the sum
  // across them.
  std::int64_t gradient_slot_bytes_peak = 0;
  std::int64_t unshards = 0;         // Units gathered so far.
  std::int64_t unsharded_bytes = 0;  // Their bytes.
  // What this rank sent of its shards for that; nothing where ranks share memory.
  std::int64_t gather_sent_bytes = 0;
  std::int64_t reduces = 0;
  std::int64_t reduces_under_way_peak = 0;
  std::int64_t backwards = 0;  // Synchronised ones.
  // The name of options.hook, empty without one, and the bytes that it has passed to its group.
  std::string hook;
  std::int64_t hook_bytes = 0;
  PlanReport plan;
  std::vector<UnitReport> by_unit;
  MemoryReport memory;
};

// A table: a line for each unit, and one about all.
std::string to_text(const ShardReport& report);
// One object of JSON with the names above, without line ends.
std::string to_json(const ShardReport& report);

class ShardingEngine;

// While it lives, every rank has a private full copy of all parameters, readable and writable.
// Every rank makes and ends the scope. Ending waits for nobody, with one exception: unless read_only,
// with OptimizerAxes::kBoth, it gathers the new values across replicas, which fails when a rank is
// lost. Each rank keeps what was written into the slice it owns, so all ranks must write the same
// values. In mixed precision the module shows the values that forward sees, and tensor() those of the
// shards. Elements written through either are kept; if both were written, tensor() wins. All other
// elements keep every bit.
// Backwards, second scopes and optimizer steps inside are errors, and so is any use of a parameter
// that SummonOptions leave sharded.
class SummonScope {
 public:
  SummonScope(SummonScope&&) noexcept;
  SummonScope& operator=(SummonScope&&) = delete;
  ~SummonScope();

  // The parameter in full precision, a plain tensor of the module's shape.
  // Throws when there is no such name, or it is not in the scope.
  at::Tensor tensor(const std::string& name) const;
  // Its sharded gradient, whole, in the dtype and shape that sharded gradients and the module have;
  // undefined where no rank has one. Throws likewise, and without SummonOptions::with_gradients.
  at::Tensor gradient(const std::string& name) const;

  // Ends the scope now, if it has not ended. Throws Error when that fails; the model is lost then. The
  // destructor does the same, but logs the failure, which the next call of the handle throws.
  void close();

 private:
  friend class FullyShardedDataParallel;
  explicit SummonScope(std::shared_ptr<ShardingEngine> engine);
  std::shared_ptr<ShardingEngine> engine_;
};

// The gathers that unshard(module) has begun.
class UnshardHandle {
 public:
  // Waits for them. Returns whether the units are whole now: false where the budget had no room, or
  // they were dropped meanwhile, so that operators gather them when they need them. Throws Error
  // when a rank is lost. Never needed: an operator waits for what it uses.
  bool wait();

 private:
  friend class FullyShardedDataParallel;
  UnshardHandle(std::shared_ptr<ShardingEngine> engine, std::vector<int> units);
  std::shared_ptr<ShardingEngine> engine_;
  std::vector<int> units_;
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

// While it lives, operators compute in the precision of the shards.
class FullPrecisionScope {
 public:
  FullPrecisionScope(FullPrecisionScope&&) noexcept;
  FullPrecisionScope& operator=(FullPrecisionScope&&) = delete;
  ~FullPrecisionScope();

 private:
  friend class FullyShardedDataParallel;
  explicit FullPrecisionScope(std::shared_ptr<ShardingEngine> engine);
  std::shared_ptr<ShardingEngine> engine_;
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

  // Every rank makes and ends the scope, between two steps. Publishes first if a backward came before
  // it. Inside, operators use the values and dtypes of the shards, and activations are cast to those:
  // evaluation in fp32 of a model that trains in bf16. Units are gathered on demand, uncoded, and the
  // least recently used make room, so that the budget holds in bytes of full precision; one of a
  // strategy grows if an operator needs more, and fully_shard's budget_bytes too small for one is an
  // error there. All ranks use the same units in the same order, also where ranks share memory, each
  // of which holds its own copies here. Changes nothing without mixed precision and gather_hook.
  // Operators that record gradients, backwards, publish(), unshard(), another budget, summons, join
  // scopes and a second such scope are errors inside. Mirrors full precision in eval mode of FSDP1.
  [[nodiscard]] FullPrecisionScope full_precision();

  // Backwards inside the scope exchange no gradients: each rank accumulates its own in full size,
  // and the next backward outside reduces the sum. This saves traffic and costs the memory of all
  // gradients in fp32; without the scope micro-batches accumulate in shards. Every rank makes and
  // ends the scope. If a backward inside throws, every rank drops what was accumulated so far. With
  // one rank `.grad()` is set at once. With {.axis = NoSyncAxis::kReplicate} gradients accumulate
  // in shards, which need a second copy, and the next backward outside sums them across replicas.
  // Mirrors FSDP.no_sync, and FSDPModule's set_requires_gradient_sync and set_requires_all_reduce.
  [[nodiscard]] NoSyncScope no_sync(const NoSyncOptions& options = {});

  // Every rank opens it around its loop over inputs, between two steps. While it lives, the first use
  // of the model in each training forward begins with one small message about who takes part. As long
  // as some rank has no inputs, units are gathered on demand and outside the plan. Each forward has
  // one backward, and whether that is under no_sync() counts when the forward begins. Not before
  // memory_bytes has led to a decision. Mirrors torch.distributed.algorithms.Join, which FSDP does
  // not have.
  JoinScope join(const JoinOptions& options = {});

  // Between two steps: waits until the device has done what was given to its streams, after which the
  // next step depends on nothing that came before. A CUDA graph of a step is captured between two such
  // calls, once steps are planned (docs/guide/gpus.md). Does nothing on the CPU.
  void synchronize();

  // unshard() gathers units as far as the budget allows, reshard() drops all of them. Collective if
  // the exchange is. They are never needed, but useful before a measurement.
  void unshard();
  void reshard();

  // The same for the units that hold the parameters of a module, or for the unit of that name, as
  // SummonOptions::module says; the plan goes on. Begins to gather those that the budget has room for
  // beside what is whole. They stay whole until they were used, their room is needed or publish().
  // Mirrors FSDPModule.unshard(async_op=True) and reshard() of one module.
  UnshardHandle unshard(const std::string& module);
  void reshard(const std::string& module);

  // Collective, between two steps, that is after publish() and before the next training forward:
  // from now on units stay whole as this strategy or these bytes say. Plans are made anew from the
  // steps recorded so far. Changes nothing where nothing is gathered: one rank, kNoShard, ranks that
  // share memory. Throws Error, on every rank, in the middle of a step, for kNoShard, for bytes below
  // the floor, with FullyShardOptions::memory_bytes, and when ranks ask for different ones; nothing
  // has changed then. Mirrors FSDPModule.set_reshard_after_forward and set_reshard_after_backward.
  void set_strategy(Strategy strategy);
  void set_budget_bytes(std::int64_t bytes);

  ShardReport report() const;
  // The units in the order of their first parameters. Equal on every rank.
  std::vector<UnitReport> units() const;

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
// parameters or is sharded already; options.units takes no module and is neither none() nor
// optional(), or says different things about one unit, or about one parameter that two modules share
// (mixed precision, output_dtype); a name in options.ignored is not there, or a
// parameter is ignored under one name and sharded under another; parameters are not
// all on the CPU, or all on one device for which sherd can exchange (docs/design/gpu.md);
// something is on the meta device without options.initialise, or that one throws (then the module
// is lost); a trainable parameter is no real floating-point tensor; the budget or the memory limit
// is below its floor (the publish of the fifth step may be the first to tell the latter);
// gradients are to be shared by ranks that share no memory; a dtype of mixed_precision is not among
// fp32, bf16 and fp16, or would narrow an fp64 parameter; ranks disagree on names, shapes, dtypes,
// options or initial values (of those that initialise writes only when the module is lost).
FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const Mesh& mesh,
    const FullyShardOptions& options = {});
FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const World& world,
    const FullyShardOptions& options = {});

// A table of what limits of memory would cost, one line each: report.memory.choices. A sentence when
// nothing was decided yet, which takes five steps with FullyShardOptions::memory_bytes.
std::string suggest(const ShardReport& report);

}  // namespace sherd
