// SPDX-License-Identifier: Apache-2.0
//
// FsdpEngine is the engine of one sharded model over several ranks: it hears every
// use of a parameter (access), brings units in and drops them within the budget
// (plan), moves them and their gradients (exchange), and keeps the order of
// backward, optimizer step and publish that makes the ranks one program.
//
// Thread rule: operators, hooks and backwards from any thread, under one lock;
// the ShardingEngine calls as that interface says.
// States and their order: docs/design/runtime.md.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include <sherd/world/world.h>
#include "autograd/backward.h"
#include "autograd/managed_storage.h"
#include "exchange/exchange.h"
#include "exchange/reducer.h"
#include "fsdp/parameter_integrity.h"
#include "fsdp/idle_optimizer_detector.h"
#include "fsdp/model_units.h"
#include "fsdp/module_gradients.h"
#include "fsdp/shard_memory.h"
#include "fsdp/sharding_engine.h"
#include "fsdp/slices.h"
#include "fsdp/summoned_parameters.h"
#include "fsdp/unit_cache.h"

namespace sherd::fsdp {

struct FsdpEngineOptions {
  int rank = 0;  // In the shard group.
  int ranks = 1;
  int replica = 0;  // Of this rank; a replica is a shard group.
  int replicas = 1;
  // Every rank owns other elements; those of rank f of replica r have number
  // f * replicas + r.
  bool both_axes = false;
  Strategy strategy = Strategy::kFullShard;
  std::optional<std::int64_t> budget_bytes;
  int reductions_under_way_max = 0;
  bool share_gradients = false;  // If the exchange can.
};

class FsdpEngine final : public ShardingEngine,
                      public autograd::ParameterUseListener,
                      public autograd::BackwardListener,
                      public std::enable_shared_from_this<FsdpEngine> {
 public:
  // Collective: compares models and opens the exchange. Parameters are still
  // the module's own; start() takes them over.
  FsdpEngine(
      ModelUnits model,
      std::unique_ptr<exchange::Exchange> exchange,
      const FsdpEngineOptions& options);
  ~FsdpEngine() override;
  FsdpEngine(const FsdpEngine&) = delete;
  FsdpEngine& operator=(const FsdpEngine&) = delete;

  // Moves this rank's slices into shard memory and empties the parameters, one
  // after another; before it does, `initialise_parameter` makes sure of a parameter's.
  void start(const std::function<void(int parameter)>& initialise_parameter = nullptr);

  bool shares_gradients() const {
    return gradients_are_shared(model_, *exchange_);
  }

  // autograd::ParameterUseListener
  void begin_use(std::span<const autograd::ParameterUse> uses, const char* operator_name)
      override;
  void end_use(std::span<const autograd::ParameterUse> uses) noexcept override;
  // autograd::BackwardListener
  void backward_ended(std::exception_ptr failure) override;

  // ShardingEngine
  NamedParameters named_parameters() override;
  double clip_grad_norm(double max_norm, const ClipOptions& options) override;
  void publish() override;
  void begin_summon(const SummonOptions& options) override;
  at::Tensor summoned(const std::string& name) override;
  void end_summon() override;
  void begin_no_sync(NoSyncAxis axis) override;
  void end_no_sync(NoSyncAxis axis) override;
  void unshard() override;
  void reshard() override;
  ShardReport report() override;
  void close() override;

 private:
  const exchange::UnitSpec& spec(UnitId unit) const {
    return model_.units[static_cast<std::size_t>(unit)];
  }
  // Shards are what other ranks read.
  bool writes_in_place() const {
    return exchange_->one_sided() && options_.strategy != Strategy::kNoShard;
  }
  int world_size() const { return options_.ranks * options_.replicas; }
  int world_rank() const {
    return options_.replica * options_.ranks + options_.rank;
  }
  int owner() const {
    return options_.both_axes
        ? options_.rank * options_.replicas + options_.replica
        : options_.rank;
  }
  void check_open() const;
  void refuse_write(
      const autograd::ParameterUse& use, const char* operator_name) const;
  std::string parameter_at(const autograd::ParameterUse& use) const;
  void refuse_stale_read(
      const autograd::ParameterUse& use, const char* operator_name) const;
  void note_phase(const char* operator_name);
  // Collective: compares requires_grad, and returns whether all ranks have
  // `print`.
  bool all_ranks_agree(std::uint64_t print);
  void refuse_different_flags();
  void note_visit(const UnitCache::Visit& visit);
  void gradient_arrived(int parameter, const at::Tensor& gradient);
  void order_reductions();
  void watch_module_gradients();
  void hide_module_gradients();
  void show_module_gradients();
  void clear_gradient(int parameter);
  int& scopes_of(NoSyncAxis axis);
  void synchronised_backward_ended();
  std::shared_ptr<void> claim_publisher();
  std::shared_ptr<void> register_backward_update(BackwardUpdate update);
  void all_reduce_max(const at::Tensor& numbers);
  void publish_now(bool keep_frozen);
  void publish_locked(bool keep_frozen);
  void warn_of_idle_optimizer();
  // Closes the exchange and remembers the first failure; returns what the user
  // is told, or throws it.
  Status close_with_failure(const Status& status);
  void fail(const Status& status);

  mutable std::mutex mu_;
  const FsdpEngineOptions options_;
  ModelUnits model_;
  std::unique_ptr<exchange::Exchange> exchange_;
  std::unique_ptr<UnitCache> cache_;
  std::unique_ptr<Slices> slices_;
  std::unique_ptr<SummonedParameters> summoned_parameters_;
  std::unique_ptr<exchange::Reducer> gradients_;
  std::unique_ptr<ParameterIntegrity> integrity_;
  std::unique_ptr<ModuleGradients> module_gradients_;

  Status error_;  // Not ok: an operation failed, and the exchange is closed.
  bool closed_ = false;       // By the user.
  bool unpublished_ = false;  // A backward ended; shards may have been written.
  // Outside of backwards, since all ranks came to the end of one.
  bool read_since_backward_ = false;
  bool compared_ = false;  // requires_grad, since the last publish.
  bool armed_ = false;     // By a training forward, for the backward to come.
  bool armed_in_backward_ = false;
  std::uint64_t generation_ = 0;
  std::int64_t backwards_ = 0;
  std::vector<UnitId> visited_;  // First visits since the last backward ended.
  std::vector<bool> was_visited_;
  UnitId last_visited_ = -1;
  // Open now: those that leave out everything, and only the replicate axis.
  int no_sync_scopes_ = 0;
  int partial_sync_scopes_ = 0;
  bool published_by_hand_ = false;
  // Of optimizers that publish themselves.
  std::weak_ptr<void> publishers_;
  IdleOptimizerDetector idle_;
};

}  // namespace sherd::fsdp
