// SPDX-License-Identifier: Apache-2.0
//
// FsdpEngine is the engine of one sharded model over several ranks. At each use of a parameter it
// gathers units within the budget (unit_cache.h); it reduces gradients (exchange/reducer.h); and it
// enforces the order of backward, optimizer step and publish that keeps ranks consistent.
//
// Thread rule: operators, hooks and backwards from any thread, under ModelEngine's lock; public
// methods as ShardingEngine says. States and their order: docs/design/runtime.md.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>
#include <sherd/world/world.h>
#include "autograd/managed_storage.h"
#include "exchange/exchange.h"
#include "exchange/make_exchange.h"
#include "exchange/reducer.h"
#include "fsdp/full_precision_units.h"
#include "fsdp/hook_reduction.h"
#include "fsdp/idle_optimizer_detector.h"
#include "fsdp/memory_planner.h"
#include "fsdp/parameter_integrity.h"
#include "fsdp/sharding_engine.h"
#include "fsdp/slices.h"
#include "fsdp/summoned_gradients.h"
#include "fsdp/summoned_parameters.h"
#include "fsdp/unit_cache.h"
#include "plan/join_round.h"
#include "world/transport.h"

namespace sherd::fsdp {

class FsdpEngine final : public ShardingEngine,
                         public autograd::ParameterUseListener {
 public:
  struct Options {
    int rank = 0;     // Its index in the shard group.
    int ranks = 1;    // The size of the shard group.
    int replica = 0;  // The index of this rank's shard group.
    int replicas = 1;
    // Every rank owns different elements: rank f of replica r owns those with number f * replicas +
    // r.
    bool both_axes = false;
    Strategy strategy = Strategy::kFullShard;
    std::optional<std::int64_t> budget_bytes;
    int prefetch_visits = 1;
    int reductions_under_way_max = 0;
    bool share_gradients = false;  // If the exchange can do that.
    bool shards_on_host = false;   // Those of a model on a device.
    std::optional<MemoryPlanner::Limit> memory;
    // What sums of gradients are divided by; unset: the number of all ranks.
    std::optional<double> divide_factor;
    // Collective: connects the ranks that hold a gradient together, in the order of world ranks.
    std::function<std::shared_ptr<world::Transport>()> connect = nullptr;
    // Collective: connects the devices of the shard group. Null if gradients are on the CPU or are
    // cut over both axes.
    std::function<std::unique_ptr<exchange::DeviceCollectives>()>
        connect_devices = nullptr;
    // The hook by which the exchange reduces; null: none.
    std::shared_ptr<HookReduction> hook;
  };

  // Collective: compares models and opens the exchange. Parameters are only taken over by start().
  FsdpEngine(
      ModelUnits model,
      std::unique_ptr<exchange::Exchange> exchange,
      const Options& options);
  ~FsdpEngine() override;
  FsdpEngine(const FsdpEngine&) = delete;
  FsdpEngine& operator=(const FsdpEngine&) = delete;

  // Moves this rank's slices into shard memory and empties the parameters, one after another.
  // Before each it calls `initialise_parameter`, which gives the parameter its value.
  void start(
      const std::function<void(std::size_t parameter)>& initialise_parameter =
          nullptr);

  bool shares_gradients() const { return slices_->gradients_are_shared(); }

  // autograd::ParameterUseListener
  void begin_use(
      std::span<const autograd::ParameterUse> uses,
      const char* operator_name) override;
  void end_use(std::span<const autograd::ParameterUse> uses) noexcept override;

  // ShardingEngine
  NamedParameters named_parameters() override;
  double clip_grad_norm(double max_norm, const ClipOptions& options) override;
  void publish() override;
  void begin_summon(const SummonOptions& options) override;
  at::Tensor summoned(const std::string& name) override;
  at::Tensor summoned_gradient(const std::string& name) override;
  void end_summon() override;
  void begin_full_precision() override;
  void end_full_precision() override;
  void begin_no_sync(NoSyncAxis axis) override;
  void end_no_sync(NoSyncAxis axis) override;
  void begin_join(const JoinOptions& options) override;
  void finish_join(const std::function<void()>& after_backward) override;
  void abandon_join() override;
  void synchronize() override;
  void unshard() override;
  void reshard() override;
  std::vector<UnitId> begin_unshard(const std::string& module) override;
  bool finish_unshard(const std::vector<UnitId>& units) override;
  void reshard(const std::string& module) override;
  void set_budget(
      Strategy strategy, std::optional<std::int64_t> bytes) override;
  ShardReport report() override;
  void close() override;

 private:
  // Whether other ranks read this rank's shards in place.
  bool writes_in_place() const {
    return exchange_->one_sided() && options_.strategy != Strategy::kNoShard;
  }
  int world_size() const { return options_.ranks * options_.replicas; }
  int world_rank() const {
    return options_.replica * options_.ranks + options_.rank;
  }
  // The number of the slice that a rank owns, by its index among the ranks that hold a gradient
  // together (plan::FlatLayout).
  int owner(int index) const {
    return options_.both_axes
        ? index % options_.ranks * options_.replicas + index / options_.ranks
        : index;
  }
  int owner() const {
    return owner(options_.both_axes ? world_rank() : options_.rank);
  }
  // ModelEngine
  void begin_training_forward() override;
  void begin_backward() override;
  void end_of_backward(const std::exception_ptr& failure) override;
  void call_hooks(std::unique_lock<std::mutex>& lock) override;
  Status explained(const Status& status) const override;
  void abandon_exchange(const Status& failure) override {
    exchange_->close(failure);
    if (collectives_) {
      collectives_->abort();
    }
  }
  // ShardingEngine
  void gradient_arrived(int parameter, at::Tensor gradient) override;
  bool has_gradient(int parameter) const override;
  void clear_gradient(int parameter) override;
  void check_parameter(int /*parameter*/) const override {
    check_storages(model_, cache_->storages());
  }

  void refuse_write(
      const autograd::ParameterUse& use, const char* operator_name) const;
  std::optional<int> used_parameter(const autograd::ParameterUse& use) const;
  std::string parameter_at(const autograd::ParameterUse& use) const;
  void refuse_stale_read(
      const autograd::ParameterUse& use, const char* operator_name) const;
  void publish_if_due(const char* operator_name);
  // Whether this rank's slices were written since the last publish.
  bool slices_written() const;
  void refuse_late_writes(const char* operator_name) const;
  void refuse_read_of_written(const char* operator_name) const;
  void refuse_early_read(const char* operator_name) const;
  // Collective: compares requires_grad, and returns which of the numbers are the same on all ranks.
  UnitCache::RanksAgree all_ranks_agree(
      std::uint64_t plans, std::uint64_t shorter_step);
  void refuse_different_flags();
  // Collective: throws if some rank has failed, or if ranks pass different numbers.
  void refuse_unless_same(const char* what, const Status& mine, double number);
  // Collective: compares the options.
  std::vector<UnitId> summoned_units(const SummonOptions& options);
  void check_summoned_use(
      std::span<const autograd::ParameterUse> uses,
      const char* operator_name) const;
  void refuse_in_gradient_summon(const char* what) const;
  void refuse_in_full_precision(const char* what) const;
  // Also in a summon scope.
  void refuse_in_scope(const char* what) const;
  plan::Budget full_precision_budget() const;
  void summon_gradients(
      const SummonOptions& options, const std::vector<UnitId>& units);
  void note_visit(const UnitCache::Visit& visit);
  void order_reductions();
  // What this rank does with the gradients of the next or current backward.
  plan::JoinKind gradient_kind() const;
  // In a join scope: tells the others, and learns from them which ranks have inputs. Throws if
  // ranks differ, or if a rank without inputs ends the scope.
  void begin_join_round(plan::JoinKind mine);
  // Takes part in one backward of the other ranks. Returns whether it succeeded.
  bool take_part_without_inputs();
  void end_join_scope();
  int& scopes_of(NoSyncAxis axis);
  void note_thawed_units();
  void synchronised_backward_ended();
  std::shared_ptr<void> claim_publisher();
  std::shared_ptr<void> register_backward_update(BackwardUpdate update);
  void all_reduce_max(const at::Tensor& numbers);
  // As in WholeParameters.
  std::vector<at::Tensor> all_to_all(
      const std::vector<at::Tensor>& to,
      const std::vector<std::int64_t>& numels);
  std::vector<double> reduced(
      std::vector<double> numbers, exchange::ScalarReduceOp op);
  // As in NamedParameters.
  void before_load();
  void drop_kept(const std::vector<std::string>& names);
  // Whether shards may have been written since the last publish.
  bool may_be_written() const;
  void publish_now(bool keep_frozen);
  void publish_locked(bool keep_frozen, bool written = true);
  void publish_before_step(bool keep_frozen);
  MemoryPlanner::Options memory_planner_options();
  void refuse_hopeless_limit();
  void plan_memory();
  std::array<bool, 2> on_any_rank(bool first, bool second = false);
  void warn_of_idle_optimizer();

  const Options options_;
  std::unique_ptr<exchange::Exchange> exchange_;
  std::unique_ptr<UnitCache> cache_;
  std::unique_ptr<Slices> slices_;
  std::unique_ptr<SummonedParameters> summoned_parameters_;
  std::unique_ptr<SummonedGradients> summoned_gradients_;  // In a scope.
  std::unique_ptr<FullPrecisionUnits> full_precision_;
  // Uses that began in a summon scope or a full precision scope, which they may outlive, by the
  // address of the first, and the number of that scope.
  std::unordered_map<const autograd::ParameterUse*, std::int64_t>
      uses_in_scopes_;
  std::int64_t scopes_opened_ = 0;
  bool full_precision_scope_ =
      false;  // Opens full_precision_, if there is a difference.
  std::shared_ptr<world::Transport> summons_;  // Null until it is needed.
  // The collectives of optimizers; null until they are needed.
  std::unique_ptr<exchange::DeviceCollectives> collectives_;
  std::unique_ptr<exchange::Reducer> gradients_;

  bool in_step_ = false;  // A training forward since the last publish.
  // A backward brought gradients, or found some; shards may be written.
  bool unpublished_ = false;
  // publish() or a summon has published since, and no rank had written: the step of an optimizer that
  // does not publish may still be made, or be left out.
  bool step_outstanding_ = false;
  // An operator outside backward has used a parameter since the last backward.
  bool read_since_backward_ = false;
  // Ranks have compared requires_grad since the last publish.
  bool compared_ = false;
  std::uint64_t generation_ = 0;
  std::uint64_t published_versions_ = 0;  // Of the slices.
  std::int64_t backwards_ = 0;
  const FlightLog log_;
  std::vector<std::int64_t> visits_;  // By unit.
  std::vector<UnitId> visited_;  // First visits since the last backward ended.
  std::vector<bool> was_visited_;
  UnitId last_visited_ = -1;
  struct Join {
    JoinOptions options;
    plan::JoinRound round = {};  // The latest.
    bool in_round = false;       // Until the end of its backward.
    bool ended_early = false;
  };
  std::optional<Join> join_;
  int partial_sync_scopes_ = 0;  // Scopes without the replicate axis.
  bool published_by_hand_ = false;
  bool hooks_due_ = false;  // Some rank has hooks, and slices have gradients.
  bool in_hooks_ = false;
  // Whether frozen units stay as they are when values written in hooks are published; unset: none
  // were written.
  std::optional<bool> written_in_hooks_;
  // Held by optimizers that publish at the end of their step.
  std::weak_ptr<void> publishers_;
  IdleOptimizerDetector idle_;
  // Null without a memory limit.
  std::shared_ptr<MemoryMeter> meter_;
  std::unique_ptr<MemoryPlanner> memory_;
  std::int64_t total_bytes_before_ = 0;  // Before shards and units were made.
  std::int64_t backwards_planned_ = 0;
};

}  // namespace sherd::fsdp
