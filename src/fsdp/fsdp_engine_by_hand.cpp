// SPDX-License-Identifier: Apache-2.0
//
// What users of FsdpEngine decide by hand: what a summon brings, units to unshard and reshard,
// another budget.
#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/status.h"
#include "fsdp/fsdp_engine.h"

namespace sherd::fsdp {
namespace {

// Fits a double.
double digest_of(const SummonOptions& options) {
  Hash64 hash;
  for (const bool flag :
       {options.read_only, options.full_precision, options.rank0_only,
        options.with_gradients}) {
    hash.add(std::uint64_t{flag});
  }
  hash.add(options.module);
  return static_cast<double>(hash.value() >> 12U);
}

}  // namespace

void FsdpEngine::refuse_unless_same(
    const char* what, const Status& mine, double number) {
  const auto ranks = static_cast<std::size_t>(world_size());
  const auto me = static_cast<std::size_t>(world_rank());
  std::vector<double> own(2 * ranks);  // Who failed, then the numbers; by rank.
  own[me] = mine.ok() ? 0.0 : 1.0;
  own[ranks + me] = number;
  const auto all = reduced(std::move(own), exchange::ScalarReduceOp::kSum);
  const auto failed = std::span(all).first(ranks);
  const auto numbers = std::span(all).last(ranks);
  mine.throw_if_failed();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    SHERD_CHECK_AS(
        kPeerMismatch, failed[rank] == 0.0, "[fsdp] ", what,
        " was refused on rank ", rank, ", whose own error says why");
    SHERD_CHECK_AS(
        kPeerMismatch, numbers[rank] == numbers[0],
        "[fsdp] ranks pass different arguments to ", what, ": rank ", rank,
        " not what rank 0 does");
  }
}

// Optimizers of sherd's own write nothing between a backward and the step that publishes it, unless
// they have written in the backward.
bool FsdpEngine::may_be_written() const {
  return unpublished_ &&
      (publishers_.expired() || slices_->writes_in_backward());
}

// ---- summoning ----

std::vector<UnitId> FsdpEngine::summoned_units(const SummonOptions& options) {
  std::vector<UnitId> units;
  const auto mine = status_of(
      [&] {
        check_summon_options(options);
        units = units_of(model_, options.module);
        cache_->refuse_in_use("summon_full_parameters()");
      },
      ErrorCode::kInvalidArgument);
  refuse_unless_same("summon_full_parameters()", mine, digest_of(options));
  return units;
}

// Collective.
void FsdpEngine::summon_gradients(
    const SummonOptions& options, const std::vector<UnitId>& units) {
  const auto count = model_.parameters.size();
  std::vector<double> mine(count);
  for (const auto& slice : slices_->all()) {
    mine[static_cast<std::size_t>(slice.parameter)] =
        slice.tensor.grad().defined() ? 1.0 : 0.0;
  }
  const auto any = reduced(std::move(mine), exchange::ScalarReduceOp::kMax);
  SummonedGradients::Options summon{
      .via = nullptr,
      .parameters = {},
      .rank0_only = options.rank0_only,
      .keep = !options.rank0_only || world_rank() == 0,
      .writable = !options.read_only};
  for (std::size_t p = 0; p < count; ++p) {
    if (any[p] != 0.0 &&
        std::ranges::find(units, model_.parameters[p].unit) != units.end()) {
      summon.parameters.push_back(static_cast<int>(p));
    }
  }
  const bool cut = options_.strategy != Strategy::kNoShard;
  if (cut && (options_.both_axes ? world_size() : options_.ranks) > 1) {
    if (summons_ == nullptr) {
      summons_ = options_.connect();
    }
    summon.via = summons_;
    summon.slice_of = [this](int index) { return owner(index); };
  }
  summoned_gradients_ =
      std::make_unique<SummonedGradients>(model_, *slices_, summon);
}

at::Tensor FsdpEngine::summoned_gradient(const std::string& name) {
  const std::lock_guard lock(mu_);
  check_summon_scope(summoned_parameters_->open());
  check_summoned_gradients(summoned_gradients_ != nullptr);
  const auto& parameter = summoned_parameters_->parameter(name);
  return summoned_gradients_->gradient(
      static_cast<int>(&parameter - model_.parameters.data()));
}

void FsdpEngine::refuse_in_gradient_summon(const char* what) const {
  SHERD_CHECK_AS(
      kFailedPrecondition,
      !summoned_gradients_ || !summoned_parameters_->may_write(), "[fsdp] ",
      what,
      " inside summon_full_parameters({.with_gradients = true}), whose end "
      "writes the whole gradients back as they are there; end the scope "
      "first, or open it read_only");
}

void FsdpEngine::begin_summon(const SummonOptions& options) {
  const std::lock_guard lock(mu_);
  check_open();
  SHERD_CHECK_AS(
      kFailedPrecondition, !summoned_parameters_->open(),
      "[fsdp] summon_full_parameters() inside another such scope");
  refuse_in_full_precision("summon_full_parameters()");
  SHERD_CHECK_AS(
      kFailedPrecondition,
      !writes_in_place() || !(autograd::in_backward() || gradients_->started()),
      "[fsdp] summon_full_parameters() inside a backward needs the room of "
      "gradients in shared memory; call it before or after");
  check_storages(model_, cache_->storages());
  const auto units = summoned_units(options);
  if (may_be_written()) {
    publish_before_step(/*keep_frozen=*/false);
  }
  // After a failure other ranks would wait for the rest of the units.
  require(status_of(
      [&] {
        if (options.with_gradients) {
          summon_gradients(options, units);
        }
        summoned_parameters_->begin(
            options, units, !options.rank0_only || world_rank() == 0);
      },
      ErrorCode::kAborted,
      "[fsdp] summon_full_parameters() failed on a rank: "));
  ++scopes_opened_;
  cast_forwards(options.full_precision);
  read_since_backward_ = false;
}

// An operator uses these inside the scope.
void FsdpEngine::check_summoned_use(
    std::span<const autograd::ParameterUse> uses,
    const char* operator_name) const {
  for (const auto& use : uses) {
    SHERD_CHECK_AS(
        kFailedPrecondition, summoned_parameters_->has(use.tag->unit),
        "[fsdp] ", operator_name, " uses parameter ", parameter_at(use),
        ", which stays sharded in the summon scope of another module or of "
        "rank 0 only");
    // It would replace the memory of what is shown instead.
    SHERD_CHECK_AS(
        kFailedPrecondition,
        !use.written || !use.tag->instead.defined() ||
            std::string_view(operator_name) != "aten::set_",
        "[fsdp] aten::set_ (torch::load()) would replace parameter ",
        parameter_at(use),
        " inside summon_full_parameters({.full_precision = true}); copy its "
        "value into scope.tensor(name)");
  }
  SHERD_CHECK_AS(
      kFailedPrecondition,
      !summoned_parameters_->full_precision() || !autograd::in_graph(),
      "[fsdp] ", operator_name, " uses parameter ", parameter_at(uses[0]),
      " inside summon_full_parameters({.full_precision = true}) and records "
      "gradients; expected a torch::NoGradGuard there");
}

at::Tensor FsdpEngine::summoned(const std::string& name) {
  const std::lock_guard lock(mu_);
  check_summon_scope(summoned_parameters_->open());
  return summoned_parameters_->tensor(name);
}

void FsdpEngine::end_summon() {
  const std::lock_guard lock(mu_);
  if (!summoned_parameters_->open()) {
    return;
  }
  const auto status = status_of(
      [&] {
        const bool may_have_written = summoned_parameters_->may_write();
        if (summoned_gradients_ && may_have_written) {
          summoned_gradients_->take_back();
        }
        summoned_gradients_.reset();
        summoned_parameters_->end();
        cast_forwards(/*full_precision=*/false);
        if (may_have_written && usable()) {
          const bool outstanding = step_outstanding_;
          publish_locked(/*keep_frozen=*/false);
          unpublished_ = step_outstanding_ = outstanding;
          slices_->remember_sample();  // What was written is no step.
        }
      },
      ErrorCode::kAborted,
      "[fsdp] a summon scope could not be ended on a rank: ");
  if (!status.ok() && error_.ok()) {
    require(status);
  }
  status.throw_if_failed();
}

// ---- full precision ----

void FsdpEngine::refuse_in_full_precision(const char* what) const {
  SHERD_CHECK_AS(
      kFailedPrecondition, !full_precision_scope_, "[fsdp] ", what,
      " inside full_precision(); end the scope first");
}

void FsdpEngine::refuse_in_scope(const char* what) const {
  SHERD_CHECK_AS(
      kFailedPrecondition, !summoned_parameters_->open(), "[fsdp] ", what,
      " inside summon_full_parameters(); end the scope first");
  refuse_in_full_precision(what);
}

// The bytes that hold outside of the scope, too. Where ranks share memory, units take no room there.
plan::Budget FsdpEngine::full_precision_budget() const {
  if (options_.strategy == Strategy::kNoShard) {
    return {};
  }
  auto budget = cache_->planned()
      ? cache_->budget()
      : budget_of(
            model_, options_.strategy, options_.budget_bytes,
            options_.prefetch_visits);
  // All units as they are cast may be fewer bytes than one visit in full precision.
  if (!options_.budget_bytes && !budget.assumed_visit_bytes) {
    budget.assumed_visit_bytes = budget.bytes;
  }
  return budget;
}

void FsdpEngine::begin_full_precision() {
  const std::lock_guard lock(mu_);
  check_open();
  plan::Budget budget;
  const auto mine = status_of(
      [&] {
        check_full_precision_scope(
            full_precision_scope_, summoned_parameters_->open());
        SHERD_CHECK_AS(
            kFailedPrecondition,
            !autograd::in_backward() && !gradients_->started() && !join_,
            "[fsdp] full_precision() inside a ",
            join_ ? "join scope" : "backward", "; call it before or after");
        if (has_other_values_in_full_precision(model_)) {
          cache_->refuse_in_use("full_precision()");
        }
        budget = full_precision_budget();
      },
      ErrorCode::kInvalidArgument);
  refuse_unless_same("full_precision()", mine, 0.0);
  check_storages(model_, cache_->storages());
  if (may_be_written()) {
    publish_before_step(/*keep_frozen=*/true);
  }
  if (has_other_values_in_full_precision(model_)) {
    full_precision_->begin(budget);
    ++scopes_opened_;
  }
  cast_forwards(/*full_precision=*/true);
  full_precision_scope_ = true;
}

void FsdpEngine::end_full_precision() {
  const std::lock_guard lock(mu_);
  full_precision_->end();
  full_precision_scope_ = false;
  cast_forwards(/*full_precision=*/false);
}

// ---- units ----

void FsdpEngine::unshard() {
  const std::lock_guard lock(mu_);
  check_open();
  if (summoned_parameters_->open()) {
    return;  // Everything is whole.
  }
  refuse_in_full_precision("unshard()");
  publish_if_due("unshard()");
  note_use();
  cache_->unshard();
}

void FsdpEngine::reshard() {
  const std::lock_guard lock(mu_);
  check_open();
  cache_->reshard();
}

std::vector<UnitId> FsdpEngine::begin_unshard(const std::string& module) {
  const std::lock_guard lock(mu_);
  check_open();
  SHERD_CHECK_AS(
      kFailedPrecondition, !summoned_parameters_->open(),
      "[fsdp] unshard() of ", module,
      " inside summon_full_parameters(); end the scope first");
  refuse_in_full_precision("unshard()");
  auto units = units_of(model_, module);
  publish_if_due("unshard()");
  // Before the ranks have told each other who has inputs, another one may ask for that only.
  if (!join_ || join_->in_round) {
    cache_->start_early(units, autograd::in_backward());
  }
  return units;
}

bool FsdpEngine::finish_unshard(const std::vector<UnitId>& units) {
  const std::lock_guard lock(mu_);
  check_open();
  return cache_->finish_early(units);
}

void FsdpEngine::reshard(const std::string& module) {
  const std::lock_guard lock(mu_);
  check_open();
  cache_->drop_unused(units_of(model_, module));
}

// ---- the budget ----

void FsdpEngine::set_budget(
    Strategy strategy, std::optional<std::int64_t> bytes) {
  const std::lock_guard lock(mu_);
  check_open();
  plan::Budget budget;
  const auto mine = status_of(
      [&] {
        SHERD_CHECK_AS(
            kFailedPrecondition,
            !in_step_ && (!unpublished_ || step_outstanding_) &&
                !summoned_parameters_->open(),
            "[fsdp] the budget changes between two steps; expected no forward, "
            "backward or summon scope since the last publish(), which sherd's "
            "optimizers call at the end of step()");
        refuse_in_full_precision("another budget");
        check_budget_change(strategy, bytes, memory_ != nullptr);
        if (cache_->planned()) {
          cache_->refuse_in_use("another budget");
          budget = budget_of(model_, strategy, bytes, options_.prefetch_visits);
        }
      },
      ErrorCode::kInvalidArgument);
  refuse_unless_same(
      bytes ? "set_budget_bytes()" : "set_strategy()", mine,
      bytes ? static_cast<double>(*bytes)
            : -1.0 - static_cast<double>(strategy));
  if (cache_->planned()) {
    cache_->set_budget(std::move(budget));
  }
}

}  // namespace sherd::fsdp
