// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/fully_shard.h>

#include <utility>
#include <vector>

#include "autograd/gradient_hook.h"
#include "autograd/managed_storage.h"
#include "base/check.h"
#include "base/rank_environment.h"
#include "exchange/make_exchange.h"
#include "fsdp/fsdp_engine.h"
#include "fsdp/initial_values.h"
#include "fsdp/model_units.h"
#include "fsdp/sharding_engine.h"
#include "fsdp/single_rank_engine.h"

namespace sherd {
namespace {

void check_options(const FullyShardOptions& options) {
  SHERD_CHECK(
      options.units != nullptr,
      "[fsdp] options.units is empty; expected a policy, e.g. "
      "sherd::units::children_of_lists()");
  SHERD_CHECK(
      !options.budget_bytes || options.strategy != Strategy::kNoShard,
      "[fsdp] no_shard takes no byte budget: nothing is ever gathered");
  SHERD_CHECK(
      options.optimizer_axes == OptimizerAxes::kShard ||
          options.strategy != Strategy::kNoShard,
      "[fsdp] no_shard cuts nothing; expected a strategy that shards with "
      "OptimizerAxes::kBoth");
  SHERD_CHECK(
      options.reductions_under_way_max >= 0,
      "[fsdp] options.reductions_under_way_max is ",
      options.reductions_under_way_max, "; expected 0 (no limit) or more");
}

void check_not_sharded(const fsdp::ModelUnits& model) {
  for (const auto& parameter : model.parameters) {
    SHERD_CHECK_AS(
        kFailedPrecondition,
        autograd::tag_of(parameter.tensor) == nullptr &&
            !autograd::has_gradient_hook(parameter.tensor),
        "[fsdp] parameter ", parameter.name,
        " is sharded already; expected a module that no sharding handle "
        "manages");
  }
}

bool over_both_axes(const Mesh& mesh, const FullyShardOptions& options) {
  return options.optimizer_axes == OptimizerAxes::kBoth &&
      mesh.replicate_size() > 1;
}

// `whole`: every rank is a replica.
fsdp::FsdpEngineOptions runtime_options(
    const Mesh& mesh, const FullyShardOptions& options, bool whole) {
  fsdp::FsdpEngineOptions runtime;
  runtime.reductions_under_way_max = options.reductions_under_way_max;
  runtime.share_gradients = options.share_gradients;
  if (whole) {
    runtime.rank = mesh.world().rank();
    runtime.ranks = mesh.world().size();
    runtime.strategy = Strategy::kNoShard;
    return runtime;
  }
  runtime.rank = mesh.shard_index();
  runtime.ranks = mesh.shard_size();
  runtime.replica = mesh.replicate_index();
  runtime.replicas = mesh.replicate_size();
  runtime.both_axes = over_both_axes(mesh, options);
  runtime.strategy = options.strategy;
  runtime.budget_bytes = options.budget_bytes;
  return runtime;
}

exchange::Kind chosen_kind(
    const World& world,
    const std::vector<int>& ranks,
    const FullyShardOptions& options) {
  return exchange::choose_kind(
      world, ranks, options.exchange, process_environment());
}

// Called after ranks have agreed on options, so that it fails on all or none.
void check_gradients_shared(
    const Mesh& mesh,
    const FullyShardOptions& options,
    const fsdp::FsdpEngine& engine) {
  const auto found = [&]() -> std::string {
    if (over_both_axes(mesh, options)) {
      return "OptimizerAxes::kBoth";
    }
    const auto kind = chosen_kind(mesh.world(), mesh.shard_ranks(), options);
    return str("ranks that exchange by ", exchange::text_of(kind));
  };
  SHERD_CHECK(
      !options.share_gradients || engine.shares_gradients(),
      "[fsdp] options.share_gradients needs memory that all ranks of the "
      "shard "
      "axis share; expected ExchangeKind::kSharedMemory on one host, and "
      "OptimizerAxes::kShard, found ",
      found());
}

// Names the connections of each sharded model of a world differently; ranks
// shard their models in the same order.
std::string next_name(const Mesh& mesh) {
  return str("fsdp/", mesh.world().next_number());
}

std::unique_ptr<exchange::Exchange> exchange_for(
    const Mesh& mesh, const FullyShardOptions& options, bool whole) {
  const auto kind_for = [&](const std::vector<int>& ranks) {
    return chosen_kind(mesh.world(), ranks, options);
  };
  if (whole) {
    const auto all = Mesh(mesh.world()).shard_ranks();
    return exchange::make_exchange(
        mesh.world(), next_name(mesh), all, kind_for(all));
  }
  return exchange::make_exchange(
      mesh, next_name(mesh),
      {.within = kind_for(mesh.shard_ranks()),
       .across = exchange::choose_kind_across(
           mesh.world(), mesh.replicate_ranks(), options.exchange,
           process_environment()),
       .both_axes = over_both_axes(mesh, options)});
}

}  // namespace

SummonScope::SummonScope(std::shared_ptr<ShardingEngine> engine)
    : engine_(std::move(engine)) {}
SummonScope::SummonScope(SummonScope&&) noexcept = default;
SummonScope::~SummonScope() { close(); }

at::Tensor SummonScope::tensor(const std::string& name) const {
  SHERD_CHECK_AS(
      kFailedPrecondition, engine_ != nullptr,
      "[fsdp] this summon scope has ended");
  return engine_->summoned(name);
}

void SummonScope::close() {
  if (auto engine = std::exchange(engine_, nullptr)) {
    engine->end_summon();
  }
}

NoSyncScope::NoSyncScope(
    std::shared_ptr<ShardingEngine> engine, NoSyncAxis axis)
    : engine_(std::move(engine)), axis_(axis) {}
NoSyncScope::NoSyncScope(NoSyncScope&&) noexcept = default;
NoSyncScope::~NoSyncScope() {
  if (engine_) {
    engine_->end_no_sync(axis_);
  }
}

FullyShardedDataParallel::FullyShardedDataParallel(
    std::shared_ptr<ShardingEngine> engine)
    : engine_(std::move(engine)) {}

FullyShardedDataParallel::FullyShardedDataParallel(
    FullyShardedDataParallel&&) noexcept = default;

FullyShardedDataParallel& FullyShardedDataParallel::operator=(
    FullyShardedDataParallel&& other) noexcept {
  if (this != &other) {
    close();
    engine_ = std::move(other.engine_);
  }
  return *this;
}

FullyShardedDataParallel::~FullyShardedDataParallel() { close(); }

std::vector<at::Tensor> FullyShardedDataParallel::parameters() const {
  std::vector<at::Tensor> slices;
  for (auto& item : engine_->named_parameters().items) {
    slices.push_back(std::move(item.slice));
  }
  return slices;
}

NamedParameters FullyShardedDataParallel::named_parameters() const {
  return engine_->named_parameters();
}

double FullyShardedDataParallel::clip_grad_norm(
    double max_norm, const ClipOptions& options) {
  return engine_->clip_grad_norm(max_norm, options);
}

void FullyShardedDataParallel::publish() { engine_->publish(); }

SummonScope FullyShardedDataParallel::summon_full_parameters(
    const SummonOptions& options) {
  engine_->begin_summon(options);
  return SummonScope(engine_);
}

NoSyncScope FullyShardedDataParallel::no_sync(const NoSyncOptions& options) {
  engine_->begin_no_sync(options.axis);
  return NoSyncScope(engine_, options.axis);
}

void FullyShardedDataParallel::unshard() { engine_->unshard(); }
void FullyShardedDataParallel::reshard() { engine_->reshard(); }
ShardReport FullyShardedDataParallel::report() const {
  return engine_->report();
}

void FullyShardedDataParallel::close() {
  if (engine_) {
    engine_->close();
  }
}

FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const Mesh& mesh,
    const FullyShardOptions& options) {
  check_options(options);
  const auto& world = mesh.world();
  const bool mixed = options.mixed_precision.param_dtype ||
      options.mixed_precision.reduce_dtype;
  // What the module shows may be the cast of what the optimizer holds; with one
  // rank on the shard axis there is nothing to gather all the same, and dropping
  // the cast would save half of it at most.
  const bool both = over_both_axes(mesh, options);
  const bool whole = options.strategy == Strategy::kNoShard ||
      (mesh.shard_size() == 1 && !both);
  const int ranks = whole || both ? world.size() : mesh.shard_size();
  auto model = fsdp::build_units(
      module, options.units, ranks, options.granularity,
      options.mixed_precision);
  check_not_sharded(model);
  fsdp::InitialValues values(module, model, world, options);
  if (world.size() == 1 && !mixed) {
    values.check();
    for (std::size_t p = 0; p < model.parameters.size(); ++p) {
      values.initialise_parameter(static_cast<int>(p));
    }
    values.finish();
    auto engine = std::make_shared<fsdp::SingleRankEngine>(std::move(model));
    engine->start();
    return FullyShardedDataParallel(std::move(engine));
  }
  auto engine = std::make_shared<fsdp::FsdpEngine>(
      std::move(model), exchange_for(mesh, options, whole),
      runtime_options(mesh, options, whole));
  if (!whole) {
    check_gradients_shared(mesh, options, *engine);
  }
  values.check();
  engine->start([&](int parameter) { values.initialise_parameter(parameter); });
  values.finish();
  return FullyShardedDataParallel(std::move(engine));
}

FullyShardedDataParallel fully_shard(
    torch::nn::Module& module,
    const World& world,
    const FullyShardOptions& options) {
  return fully_shard(module, Mesh(world), options);
}

}  // namespace sherd
