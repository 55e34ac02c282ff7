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
#include <sherd/base/error.h>
#include <sherd/ddp/comm_hook.h>
#include <sherd/fsdp/activation_checkpointing.h>
#include <sherd/fsdp/gather_hook.h>
#include <sherd/fsdp/units.h>
#include <sherd/optim/named_parameters.h>
#include <sherd/world/world.h>

namespace sherd {

// How much stays whole. Each strategy is a byte budget for unsharded units (docs/guide/cache.md).
enum class Strategy {
  // Enough for the root unit, the largest visit and one unit ahead.
  kFullShard,
  // Enough for all units, so that each is gathered once per step.
  kShardGradOp,
  kNoShard,  // Nothing is sharded; gradients are all-reduced.
};

// The ranks of a mesh over which optimizer state is sharded, together with the parameters and
// gradients that an optimizer sees.
enum class OptimizerAxes {
  kShard,  // The ranks of a replica: replicas hold equal states.
  // All ranks: an optimizer sees 1/W of the elements. Publishing gathers the new values across
  // replicas; in exchange each gradient is sent only to its owner. The memory from which a replica
  // gathers takes another 1/F of the parameters.
  kBoth,
};

// All options change behaviour, except those that say "performance only".
struct FullyShardOptions {
  // Which modules are gathered together, and with which options. Larger units need more memory,
  // more units need more messages.
  units::Policy units = units::optional(units::children_of_lists());
  // The bytes of unsharded units never exceed the strategy's budget.
  Strategy strategy = Strategy::kFullShard;
  // A budget instead of the strategy's. At least the largest set of units that one operator uses.
  // Not for kNoShard.
  std::optional<std::int64_t> budget_bytes = std::nullopt;
  // A limit for the resident memory of each process or, for a module on a GPU, for what LibTorch's
  // allocator takes of that GPU. In the first five steps all regions of `checkpointing` are
  // recomputed, and units are resharded as with kFullShard. Then sherd chooses which activations
  // and whole units to keep, so that steps take the least time within the limit; report().memory
  // shows the choice. Values are the same either way. Needs kFullShard or kNoShard, and no
  // budget_bytes. Guide: docs/guide/memory.md.
  std::optional<std::int64_t> memory_bytes = std::nullopt;
  // How many visits before its use a unit may be gathered, in forward and backward, from the second
  // step on. The order is that of the previous step, and a gather starts when the budget has room;
  // with kFullShard there is room for this many of the largest unit. 0: each unit is gathered when
  // it is used. Performance only. Replaces set_modules_to_forward_prefetch and
  // set_modules_to_backward_prefetch of FSDP2.
  int prefetch_visits = 1;
  // When a unit is gathered again before its parameters change (in backward, in further
  // micro-batches and in evaluations), it is gathered only among this many neighbouring ranks of
  // the shard axis. For that each rank keeps 1/secondary_ranks of every unit beside its shards.
  // Meant for networks that are fast inside a host and slow between hosts; set it to the number of
  // ranks of a host. Must divide the shard axis, and needs kFullShard. Values are the same, bit for
  // bit. It applies to exchanges by messages: if all ranks share memory, nothing is gathered, and
  // if the ranks of each host do, kShardGradOp achieves as much. 0: off. Mirrors the int of FSDP2's
  // reshard_after_forward, and hpZ of ZeRO++.
  int secondary_ranks = 0;
  // The object through which the model runs its layers; memory_bytes decides about its regions.
  std::optional<ActivationCheckpointing> checkpointing = std::nullopt;
  // Performance only: values are the same bit for bit, except that kHierarchical adds gradients in
  // another order.
  ExchangeKind exchange = ExchangeKind::kAuto;
  // How many units may have reductions of gradients in flight at a time. This limits the memory of
  // gradients if backward is faster than the network: backward then waits for the oldest reduction,
  // but for at most a second, because ranks that visit units in different orders may wait for each
  // other. 0: no limit.
  int reductions_under_way_max = 4;
  // Values are the same either way, up to rounding. No effect with one replica. Not for kNoShard.
  OptimizerAxes optimizer_axes = OptimizerAxes::kShard;
  // For a module on a GPU: parameters(), their gradients and thus the optimizer's state lie in
  // pinned host memory. Each gather copies this rank's shard to the device, and each reduction
  // copies its sum back, overlapping with computation; the end of backward waits for the sums, and
  // the optimizer runs on the CPU. With several replicas each sum goes to the device once more to
  // be summed across them, and a replica of one rank gathers from itself. Meant for models of which
  // 1/W of parameters and state does not fit on a GPU. No effect for parameters on the CPU. Not for
  // kNoShard or gather hooks. Mirrors CPUOffloadPolicy of FSDP2 and CPUOffload(offload_params=True)
  // of FSDP1.
  bool cpu_offload = false;
  // For a module on a GPU: units, shards and gradients lie in memory that the backend of its
  // collectives allocates and registers, so that NCCL need not copy through buffers of its own and
  // can let the network sum (NVLink SHARP). Costs a pool of memory for each of two communicators.
  // Where the backend or the GPU offers no such memory, LibTorch's allocator is used;
  // report().memory_from_backend shows which. The same on all ranks. Performance only. Mirrors
  // FSDPModule.set_allocate_memory_from_process_group_for_comm.
  bool memory_from_backend = false;
  // Parameters and buffers first get the values of rank 0. With false, ranks must hold equal
  // values. Mirrors FSDP(sync_module_states=True).
  bool sync_module_states = false;
  // Without sync_module_states, ranks compare digests of their parameters and buffers, and all of
  // them throw if two differ. This reads the whole module, which takes about 0.15 s per GB, and
  // sends two small messages. Switch it off if you load a checkpoint next, or if buffers are meant
  // to differ.
  bool compare_initial_values = true;
  // Lets each rank read whole gradients, as Muon does: sharded gradients are stored in memory that
  // ranks share instead of private memory, at no further cost. All ranks of the shard axis must be
  // on one host with kSharedMemory, and OptimizerAxes must be kShard. No effect if every rank has
  // whole gradients anyway (one rank, kNoShard).
  bool share_gradients = false;
  // Where parameters and buffers on the meta device get memory, so that a model larger than the
  // memory of one GPU can be sharded over several. Unset: where the other parameters lie, or the
  // CPU if all are on the meta device. Parameters that have memory must lie there already. Mirrors
  // FSDP(device_id).
  std::optional<at::Device> device = std::nullopt;
  // Gives parameters and buffers on the meta device their first values: writes the value of one
  // into `value`, a plain CPU tensor of the module's shape and dtype. It is called once for each,
  // on every rank (with sync_module_states only on rank 0), in module order, one after another, so
  // that only one whole parameter is in memory beside the shards. It must write the same values on
  // every rank. Mirrors FSDP(param_init_fn).
  std::function<void(const std::string& name, const at::Tensor& value)>
      initialise = nullptr;
  // Empty: parameters may be cut at any element.
  Granularity granularity = nullptr;
  // Unset: every parameter, gradient and message has the module's dtype.
  MixedPrecision mixed_precision = {};
  // What sums of gradients over ranks are divided by. Unset: the number of ranks, which gives the
  // mean; 1 gives the sum. Mirrors FSDPModule.set_gradient_divide_factor.
  std::optional<double> gradient_divide_factor = std::nullopt;
  // Reduces gradients, by messages, instead of the exchange's mean. With replicas the hook reduces
  // the gradients of a shard between replicas; without replicas it reduces them to shards, and must
  // support that (reduces_to_shards()). Its result counts as the mean, to which
  // gradient_divide_factor applies. One object for each handle; hooks of the same name on every
  // rank. No effect with one rank. Mirrors FullyShardedDataParallel.register_comm_hook and
  // FSDPModule.set_all_reduce_hook.
  CommHookPtr hook = nullptr;
  // Decides what is sent when units are gathered, by messages. One object for each handle; hooks of
  // the same name on every rank. Costs the memory of what is sent of one unit, and of this rank's
  // shards in the form in which they are sent. No effect if nothing is gathered.
  GatherHookPtr gather_hook = nullptr;
  // Names of modules, parameters and buffers, or patterns of `*` and `?` as in units::by_name(),
  // that sherd leaves alone: they are not compared, synchronised, sharded or reduced. A module
  // stands for everything in it. Their gradients are those of the rank, and a checkpoint has ignored
  // parameters only if the program adds them. Each name must exist.
  // Mirrors ignored_modules of FSDP1 and ignored_params of FSDP2.
  std::vector<std::string> ignored = {};
};

struct ClipOptions {
  double p = 2.0;  // 1, 2, any positive number, or infinity.
  bool error_if_nonfinite = false;
};

struct SummonOptions {
  // The scope is only for reading: what is written inside it is lost.
  bool read_only = false;
  // In mixed precision operators compute with the values of the shards instead of their casts, and
  // activations are cast to the dtypes of the shards, for example to evaluate in fp32. Parameters
  // still show param_dtype as their dtype. Operators must not record gradients.
  // FullyShardedDataParallel::full_precision() does the same unit by unit.
  bool full_precision = false;
  // Only rank 0 gets the copies. Other ranks take part in the gathers, and hold one unit at a time
  // meanwhile; their parameters stay sharded. Needs read_only. Mirrors rank0_only of FSDP1.
  bool rank0_only = false;
  // Gradients are whole, too: SummonScope::gradient(). Elements written to them are kept, unless
  // read_only; each rank holds a second copy of its sharded gradients for that. Elements written to
  // the gradients of slices meanwhile are kept, too. Unless read_only, clip_grad_norm() and
  // GradScaler::unscale() are errors inside: they would not see what is written to whole gradients.
  // Mirrors with_grads of FSDP1.
  bool with_gradients = false;
  // The name of a module or of a unit. Only the units that hold its parameters are whole, including
  // those of modules inside it. A tied parameter counts under its first name. Empty: all units.
  std::string module = {};
};

// What backwards under no_sync() leave out.
enum class NoSyncAxis {
  kBoth,  // Everything: they exchange nothing.
  // The sum across replicas; gradients are still summed to shards within each replica. If every
  // rank is a replica, this is the same as kBoth; if there is one replica, nothing is left out.
  kReplicate,
};

struct NoSyncOptions {
  NoSyncAxis axis = NoSyncAxis::kBoth;
};

// Figures about the plan that says which units are whole when (docs/design/plan.md). A step lasts
// from one publish to the next.
struct PlanReport {
  std::int64_t steps = 0;
  std::int64_t steps_planned = 0;  // Steps that followed a plan throughout.
  std::int64_t plans_made = 0;
  std::int64_t deviations = 0;  // Visits that the plan did not have ahead.
  // What the last plan predicts for a step.
  std::int64_t gathers = 0;
  std::int64_t gathered_bytes = 0;
  std::int64_t lower_bound_bytes = 0;  // No plan in this budget gathers less.
  // What a budget larger by a tenth would save.
  std::int64_t tenth_more_saves_bytes = 0;
};

// Parameters of a unit that have the same dtypes and are all trained or all frozen. They lie in one
// contiguous buffer.
struct FlatReport {
  std::vector<std::string> parameters;
  std::int64_t numel = 0;             // Including padding between parameters.
  at::ScalarType dtype = at::kFloat;  // Of shards and optimizer state.
  at::ScalarType param_dtype = at::kFloat;     // Of whole units and gathers.
  at::ScalarType reduce_dtype = at::kFloat;    // In which gradients are sent.
  at::ScalarType gradient_dtype = at::kFloat;  // Of sharded gradients.
  bool trainable = true;
};

// One unit, as the policy made it, and what it has cost this rank since fully_shard().
struct UnitReport {
  std::string name;        // "(root)" for the root unit.
  std::int64_t bytes = 0;  // When whole.
  bool keep_whole = false;
  std::vector<FlatReport> flats;
  std::int64_t visits = 0;   // Visits by operators.
  std::int64_t gathers = 0;  // How often it was gathered.
  double gather_s = 0;       // How long the gathers took, whatever ran beside.
  double waited_s = 0;       // How long operators waited for it.
  // The share of gather_s in which no operator waited. 0 if ranks share memory, where nothing
  // moves.
  double overlap = 0;
};

// What a memory limit would cost.
struct MemoryChoice {
  std::int64_t limit_bytes = 0;
  std::int64_t peak_bytes = 0;    // Of the process.
  std::int64_t budget_bytes = 0;  // For whole units; 0 if nothing is gathered.
  int recomputed = 0;             // Number of regions.
  double step_s = 0;
  double lower_bound_s = 0;  // No choice within the limit takes less.
};

// What FullyShardOptions::memory_bytes has led to. Each figure is the largest of any rank, measured
// in the second to the fifth step.
struct MemoryReport {
  bool decided = false;  // True after the fifth step.
  std::int64_t limit_bytes = 0;
  std::int64_t floor_bytes = 0;  // What a step needs that keeps nothing.
  // The choice, and its predicted costs.
  std::int64_t peak_bytes = 0;
  std::int64_t budget_bytes = 0;
  int regions = 0;
  int recomputed = 0;
  double step_s = 0;
  double lower_bound_s = 0;
  double last_step_s = 0;  // What the last step took on this rank.
  // What other limits would cost, from the floor to a limit that keeps everything.
  std::vector<MemoryChoice> choices = {};
};

struct ShardReport {
  int units = 0;
  std::int64_t budget_bytes = 0;  // 0: none.
  // The largest number of bytes of unsharded units so far.
  std::int64_t unsharded_bytes_peak = 0;
  // Bytes of the shards of parameters and gradients, including those of parameters that started
  // frozen and were trained later, and in mixed precision of casts; also those of secondary shards
  // and, with OptimizerAxes::kBoth, of the memory from which the replica gathers.
  std::int64_t shard_bytes = 0;
  // Memory of gradients in flight and, with several replicas, of those that wait for the sum across
  // them.
  std::int64_t gradient_slot_bytes_peak = 0;
  std::int64_t unshards = 0;         // Units gathered so far.
  std::int64_t unsharded_bytes = 0;  // Their bytes.
  // What this rank sent of its shards for these gathers; 0 if ranks share memory.
  std::int64_t gather_sent_bytes = 0;
  // Whether FullyShardOptions::memory_from_backend has effect.
  bool memory_from_backend = false;
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

// A table with a line for each unit and one line for all of them.
std::string to_text(const ShardReport& report);
// One JSON object with the names above, without line breaks.
std::string to_json(const ShardReport& report);

class ShardingEngine;

// While it lives, every rank has a private full copy of all parameters, readable and writable.
// Every rank makes and ends the scope. Ending waits for nobody, with one exception: unless read_only,
// with OptimizerAxes::kBoth, it gathers the new values across replicas, which fails when a rank is
// lost. Each rank keeps what was written into the slice it owns, so all ranks must write the same
// values. In mixed precision the module shows the values that forward sees, and tensor() those of the
// shards. Elements written through either are kept; if both were written, tensor() wins. All other
// elements keep every bit. One rank without mixed precision and CPU offload has no copy of the model:
// there tensor() is the parameter itself, unless read_only.
// Backwards, second scopes and optimizer steps inside are errors, and so is any use of a parameter
// that SummonOptions leave sharded.
class SummonScope {
 public:
  SummonScope(SummonScope&&) noexcept;
  SummonScope& operator=(SummonScope&&) = delete;
  ~SummonScope();

  // The parameter in full precision, a plain tensor of the module's shape. Throws Error if there is
  // no such name, or if it is not in the scope.
  at::Tensor tensor(const std::string& name) const;
  // The whole gradient, in the module's shape and in the dtype of sharded gradients; undefined if
  // no rank has one. Throws Error in the same cases, and without SummonOptions::with_gradients.
  at::Tensor gradient(const std::string& name) const;

  // Ends the scope now, if it has not ended. Throws Error when that fails; the model is lost then. The
  // destructor does the same, but logs the failure, which the next call of the handle throws.
  void close();

 private:
  friend class FullyShardedDataParallel;
  explicit SummonScope(std::shared_ptr<ShardingEngine> engine);
  std::shared_ptr<ShardingEngine> engine_;
};

// The gathers that unshard(module) has started.
class UnshardHandle {
 public:
  // Waits for the gathers. Returns whether the units are whole now. It is false if the budget had
  // no room or they were dropped meanwhile; operators then gather them when they need them. Throws
  // Error if a rank is lost. Calling it is never necessary: an operator waits for what it uses.
  bool wait();

 private:
  friend class FullyShardedDataParallel;
  UnshardHandle(std::shared_ptr<ShardingEngine> engine, std::vector<int> units);
  HandleState<std::shared_ptr<ShardingEngine>, "[fsdp] UnshardHandle"> engine_;
  std::vector<int> units_;
};

// While it lives, backwards leave out the reduction of their gradients, or the part NoSyncAxis
// names.
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
// thread, which need not be one that uses the model, and never while another thread uses the model.
class FullyShardedDataParallel {
 public:
  FullyShardedDataParallel(FullyShardedDataParallel&&) noexcept;
  FullyShardedDataParallel& operator=(FullyShardedDataParallel&&) noexcept;
  ~FullyShardedDataParallel();

  // This rank's slice of each parameter, 1-D leaves in module order; empty slices are left out.
  // `.grad()` is set when a synchronised backward returns. Returns the same tensors every time.
  std::vector<at::Tensor> parameters() const;
  NamedParameters named_parameters() const;

  // Collective. Scales gradients so that their total p-norm is at most `max_norm`. Returns the norm
  // before scaling, the same on every rank. Mirrors torch.nn.utils.clip_grad_norm_.
  double clip_grad_norm(double max_norm, const ClipOptions& options = {});

  // Makes shards that were written by hand or by another library's optimizer visible to all ranks;
  // sherd's optimizers call it themselves. Every rank calls it.
  void publish();

  // Makes all parameters whole: see SummonScope. Collective. Publishes first if a backward came
  // before it, unless one of sherd's optimizers will publish in its step(). In that case nothing
  // has been written yet, and graphs made before a read_only scope can still be used after it. The
  // copies are not part of the byte budget.
  [[nodiscard]] SummonScope summon_full_parameters(
      const SummonOptions& options = {});

  // Inside the scope, operators use the values and dtypes of the shards, and activations are cast
  // to those, for example to evaluate in fp32 a model that trains in bf16. Every rank makes and
  // ends the scope, between two steps. Publishes first where summon_full_parameters() does. Units are
  // gathered on demand, without gather_hook, and the least recently used are dropped to make room,
  // so that the budget holds in bytes of full precision. If an operator needs more than that, the
  // budget of a strategy grows, whereas with fully_shard's budget_bytes it is an error. All ranks
  // use the same units in the same order, also if they share memory, because here each holds its
  // own copies. No effect without mixed precision and gather_hook. Errors inside it: operators that
  // record gradients, backwards, publish(), unshard(), a change of the budget, summons, join scopes
  // and a second such scope. Mirrors full precision in eval mode of FSDP1.
  [[nodiscard]] FullPrecisionScope full_precision();

  // Backwards inside the scope exchange no gradients: each rank accumulates its own in full size,
  // and the next backward outside reduces the sum. This saves traffic and costs the memory of all
  // gradients in fp32; without the scope micro-batches accumulate in shards. Every rank makes and
  // ends the scope. If a backward inside throws, every rank drops what was accumulated so far. With
  // one rank `.grad()` is set at once. With {.axis = NoSyncAxis::kReplicate} gradients accumulate
  // in shards, which need a second copy, and the next backward outside sums them across replicas.
  // Mirrors FSDP.no_sync, and FSDPModule's set_requires_gradient_sync and set_requires_all_reduce.
  [[nodiscard]] NoSyncScope no_sync(const NoSyncOptions& options = {});

  // Every rank opens it around its loop over inputs, between two steps. While it lives, the first
  // use of the model in each training forward begins with one small message about which ranks take
  // part. As long as some rank has no inputs, units are gathered on demand, without the plan. Each
  // forward has one backward, and whether no_sync() applies is decided when the forward begins.
  // With memory_bytes, it can be opened only after the decision. Mirrors
  // torch.distributed.algorithms.Join, which FSDP does not support.
  [[nodiscard]] JoinScope join(const JoinOptions& options = {});

  // Between two steps: waits until the device has finished all work queued on its streams. The next
  // step then depends on nothing before it. A CUDA graph of a step is captured between two such
  // calls, once steps are planned (docs/guide/gpus.md). Does nothing on the CPU.
  void synchronize();

  // unshard() gathers units as far as the budget allows; reshard() drops all of them but those that
  // a TouchScope uses. Collective if the exchange is. They are never needed, but useful before a
  // measurement.
  void unshard();
  void reshard();

  // The same for the units that hold the parameters of a module, or for the unit of that name, as
  // SummonOptions::module says; the plan stays in use. unshard() starts to gather those units for
  // which the budget has room beside what is whole. They stay whole until they have been used,
  // until their room is needed, or until publish(). Mirrors FSDPModule.unshard(async_op=True) and
  // reshard() of one module.
  UnshardHandle unshard(const std::string& module);
  void reshard(const std::string& module);

  // Collective, between two steps, that is after publish() and before the next training forward:
  // from now on units stay whole as this strategy or this number of bytes says. New plans are made
  // from the steps recorded so far. No effect if nothing is gathered: with one rank, with kNoShard,
  // or if ranks share memory. Throws Error, on every rank, in the middle of a step, while a
  // TouchScope lives, for kNoShard, for bytes below the floor, with
  // FullyShardOptions::memory_bytes, and if ranks ask for different ones; nothing has changed then.
  // Mirrors FSDPModule.set_reshard_after_forward and set_reshard_after_backward.
  void set_strategy(Strategy strategy);
  void set_budget_bytes(std::int64_t bytes);

  ShardReport report() const;
  // The units in the order of their first parameters. Equal on every rank.
  std::vector<UnitReport> units() const;

  // Ends sharding, as the destructor does: any later use of the model is an error. Its parameters have
  // no values any more, and it cannot be sharded again: save a checkpoint before, and load it into a
  // new module. Idempotent. Where nothing was moved (one rank without mixed precision and CPU
  // offload), the module is a plain one again.
  void close();

 private:
  friend FullyShardedDataParallel fully_shard(
      torch::nn::Module&, const Mesh&, const FullyShardOptions&);
  explicit FullyShardedDataParallel(std::shared_ptr<ShardingEngine> engine);
  HandleState<
      std::shared_ptr<ShardingEngine>,
      "[fsdp] FullyShardedDataParallel">
      engine_;
};

// Shards `module` in place over the mesh's shard axis. Collective. Parameter objects stay the same,
// but their bytes move. Ranks must hold equal modules with equal values (see
// compare_initial_values). With several replicas (hybrid sharding) each replica holds the whole
// model, and gradients are summed over all ranks, so replicas keep equal bits. With one rank and
// without mixed precision nothing is moved, and nothing costs anything.
//
// Throws Error, on every rank if ranks differ, if
// - the module has no parameters, is sharded already, or was sharded by a handle that was closed;
// - options.units takes no module and is neither none() nor optional();
// - options.units says different things about one unit, or about one parameter that two modules
//   share (mixed precision, output_dtype);
// - a name in options.ignored does not exist, or a parameter is ignored under one name and sharded
//   under another;
// - parameters are neither all on the CPU nor all on one device for which sherd can exchange
//   (docs/design/gpu.md), or not on options.device;
// - something is on the meta device without options.initialise, or that function throws (the module
//   is then lost);
// - a trainable parameter is not a real floating-point tensor;
// - the budget or the memory limit is below its floor (for the limit, the publish of the fifth step
//   may be the first to tell);
// - gradients are to be shared by ranks that share no memory;
// - a dtype of mixed_precision is not fp32, bf16 or fp16, or would narrow an fp64 parameter;
// - ranks disagree on names, shapes, dtypes, options or initial values (for values that
//   options.initialise writes, the module is then lost).
[[nodiscard]] FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const Mesh& mesh,
    const FullyShardOptions& options = {});
[[nodiscard]] FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const World& world,
    const FullyShardOptions& options = {});

// A table of what different memory limits would cost, one line each: report.memory.choices. If
// nothing was decided yet, which takes five steps with FullyShardOptions::memory_bytes, a sentence
// says so.
std::string suggest(const ShardReport& report);

}  // namespace sherd
