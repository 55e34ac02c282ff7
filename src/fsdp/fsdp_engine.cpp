// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp_engine.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "autograd/gradient_hook.h"
#include "autograd/param_key.h"
#include "base/check.h"
#include "base/log.h"
#include "fsdp/clip_gradients.h"

namespace sherd::fsdp {
namespace {

using plan::Budget;

Budget budget_of(
    const std::vector<std::int64_t>& unit_bytes,
    std::optional<UnitId> root,
    const FsdpEngineOptions& options) {
  const plan::UnitSizes sizes{.bytes = unit_bytes, .root = root};
  if (options.budget_bytes) {
    return plan::explicit_budget(sizes, *options.budget_bytes);
  }
  switch (options.strategy) {
    case Strategy::kFullShard:
      return plan::full_shard_budget(sizes);
    case Strategy::kShardGradOp:
      return plan::shard_grad_op_budget(sizes);
    case Strategy::kNoShard:
      break;
  }
  return {};
}

}  // namespace

FsdpEngine::FsdpEngine(
    ModelUnits model,
    std::unique_ptr<exchange::Exchange> exchange,
    const FsdpEngineOptions& options)
    : ShardingEngine(std::move(model)),
      options_(options),
      exchange_(std::move(exchange)),
      was_visited_(model_.units.size(), false) {
  const auto bytes = bytes_by_unit(model_);
  auto budget = exchange_->one_sided()
      ? Budget()
      : budget_of(bytes, model_.root, options_);
  const bool replicate = options_.strategy == Strategy::kNoShard;
  exchange::ModelSpec model_spec;
  model_spec.units = model_.units;
  model_spec.placement = replicate ? exchange::ModelPlacement::kReplicate
                                   : exchange::ModelPlacement::kShard;
  model_spec.share_gradients = options_.share_gradients;
  model_spec.unsharded_bytes_max = budget.bytes.value_or(0);
  exchange_->open(model_spec).throw_if_failed();
  cache_ = std::make_unique<UnitCache>(
      model_, *exchange_,
      UnitCacheOptions{
          .budget = std::move(budget),
          .replicated = replicate,
          .one_sided = exchange_->one_sided(),
          .fail = [this](const Status& status) { fail(status); },
          .all_ranks_agree =
              [this](std::uint64_t print) { return all_ranks_agree(print); }});
  slices_ = std::make_unique<Slices>(
      model_, *exchange_, owner(), /*owner_of_all=*/replicate);
  summoned_parameters_ =
      std::make_unique<SummonedParameters>(model_, *cache_, *slices_);
  gradients_ = std::make_unique<exchange::Reducer>(
      model_.units, model_.parameters, *exchange_, *slices_, 1.0 / world_size(),
      options_.reductions_under_way_max);
}

FsdpEngine::~FsdpEngine() { close(); }

void FsdpEngine::start(
    const std::function<void(int parameter)>& initialise_parameter) {
  autograd::install_param_key();
  autograd::install_backward_engine();
  cache_->make_storages(this);
  integrity_ = std::make_unique<ParameterIntegrity>(model_, cache_->storages());
  for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
    const auto& parameter = model_.parameters[p];
    if (initialise_parameter) {
      initialise_parameter(static_cast<int>(p));
    }
    slices_->copy_from_full(static_cast<int>(p), parameter.tensor);
    parameter.tensor.mutable_grad().reset();
    autograd::adopt(
        parameter.tensor,
        *cache_->storages()[static_cast<std::size_t>(parameter.unit)]
                           [static_cast<std::size_t>(parameter.flat)],
        model_.offset_of(parameter),
        model_.flat_of(parameter).unsharded_dtype());
    if (parameter.trainable >= 0) {
      autograd::set_gradient_hook(
          parameter.tensor,
          while_alive(
              this,
              [index = static_cast<int>(p)](
                  FsdpEngine& self, const at::Tensor& gradient) {
                self.gradient_arrived(index, gradient);
              }));
    }
  }
  watch_module_gradients();
  idle_.remember(slices_->tensors());
}

Status FsdpEngine::explained(const Status& status) const {
  return last_visited_ < 0
      ? status
      : Status(
            status.code(),
            str(status.message(), "; the last unit used here is ",
                model_.unit(last_visited_).name));
}

// ---- visits ----

std::string FsdpEngine::parameter_at(const autograd::ParameterUse& use) const {
  const auto offset = use.tensor->storage_offset();
  std::string name = "of unit " + model_.unit(use.tag->unit).name;
  for (const auto& parameter : model_.parameters) {
    const auto begin = model_.offset_of(parameter);
    if (parameter.unit == use.tag->unit && parameter.flat == use.tag->flat &&
        begin <= offset && offset < begin + parameter.tensor.numel()) {
      name = parameter.name;
    }
  }
  return name;
}

void FsdpEngine::refuse_write(
    const autograd::ParameterUse& use, const char* operator_name) const {
  throw Error(
      str("[fsdp] ", operator_name, " would write parameter ",
          parameter_at(use),
          summoned_parameters_->open()
              ? ", but the summon scope was opened read_only"
              : ", which is sharded: the write would be lost or seen by other "
                "ranks; write inside summon_full_parameters()"),
      ErrorCode::kFailedPrecondition);
}

// An optimizer may have written the parameter here or on another rank.
void FsdpEngine::refuse_stale_read(
    const autograd::ParameterUse& use, const char* operator_name) const {
  const auto& flat =
      model_.unit(use.tag->unit).flats[static_cast<std::size_t>(use.tag->flat)];
  SHERD_CHECK_AS(
      kFailedPrecondition,
      !flat.trainable || !gradients_->reduced(use.tag->unit), "[fsdp] ",
      operator_name, " reads parameter ", parameter_at(use),
      " in a backward after its gradient was complete, when an optimizer may "
      "have updated it; construct the optimizer without in_backward");
}

void FsdpEngine::begin_use(
    std::span<const autograd::ParameterUse> uses, const char* operator_name) {
  const std::lock_guard lock(mu_);
  check_open();
  UnitCache::Visit visit;
  const bool updates = autograd::in_backward() && slices_->writes_in_backward();
  for (const auto& use : uses) {
    if (updates) {
      refuse_stale_read(use, operator_name);
    }
    if (use.written && !summoned_parameters_->may_write()) {
      refuse_write(use, operator_name);
    }
    if (std::find(visit.begin(), visit.end(), use.tag->unit) == visit.end()) {
      visit.push_back(use.tag->unit);
    }
  }
  if (summoned_parameters_->open()) {
    return;  // Everything is whole.
  }
  std::sort(visit.begin(), visit.end());
  note_phase(operator_name);
  note_visit(visit);
  last_visited_ = visit.back();
  read_since_backward_ = read_since_backward_ || !autograd::in_backward();
  cache_->visit(visit, autograd::records_gradients(), autograd::in_backward());
  cache_->pin(visit);
}

void FsdpEngine::end_use(
    std::span<const autograd::ParameterUse> uses) noexcept {
  const std::lock_guard lock(mu_);
  if (summoned_parameters_->open()) {
    return;
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const auto same_unit = [&](const autograd::ParameterUse& other) {
      return other.tag->unit == uses[i].tag->unit;
    };
    const auto* before = uses.data() + i;
    if (std::none_of(uses.data(), before, same_unit)) {
      cache_->unpin(uses[i].tag->unit);
    }
  }
}

// Derives from a visit whether forward, backward or evaluation is running.
void FsdpEngine::note_phase(const char* operator_name) {
  if (unpublished_ && !autograd::in_backward()) {
    SHERD_CHECK_AS(
        kFailedPrecondition, autograd::records_gradients(), "[fsdp] ",
        operator_name,
        " reads a sharded parameter outside training, after a backward and "
        "before its update was published; call fsdp.publish() on every rank "
        "after the optimizer step (sherd's own optimizers do)");
    if (publishers_.expired()) {
      publish_locked(/*keep_frozen=*/true);
    }
  }
  note_use();
}

bool FsdpEngine::all_ranks_agree(std::uint64_t print) {
  constexpr std::uint64_t kLow = 0xffffffff;
  const auto flags = integrity_->flags_fingerprint();
  const auto halves =
      at::empty({4}, at::TensorOptions().dtype(c10::ScalarType::Double));
  auto* half = halves.mutable_data_ptr<double>();
  half[0] = static_cast<double>(print >> 32U);
  half[1] = static_cast<double>(print & kLow);
  half[2] = static_cast<double>(flags >> 32U);
  half[3] = static_cast<double>(flags & kLow);
  const auto status =
      exchange_->all_reduce(halves, exchange::ScalarReduceOp::kSame);
  if (!status.ok()) {
    fail(status);
  }
  if (half[2] == 0.0 || half[3] == 0.0) {
    refuse_different_flags();
  }
  integrity_->check_not_thawed();  // On all ranks or on none.
  compared_ = true;
  return half[0] != 0.0 && half[1] != 0.0;
}

// Collective: every rank knows that flags differ. The error names the first such
// parameter and its ranks.
void FsdpEngine::refuse_different_flags() {
  const auto ranks = static_cast<std::size_t>(world_size());
  const auto count = model_.parameters.size();
  const auto flags = at::zeros(
      {static_cast<std::int64_t>(count * ranks)},
      at::TensorOptions().dtype(c10::ScalarType::Double));
  auto* flag = flags.mutable_data_ptr<double>();
  for (std::size_t p = 0; p < count; ++p) {
    const bool set = model_.parameters[p].tensor.requires_grad();
    flag[p * ranks + static_cast<std::size_t>(world_rank())] = set ? 1.0 : 0.0;
  }
  const auto status =
      exchange_->all_reduce(flags, exchange::ScalarReduceOp::kSum);
  if (!status.ok()) {
    fail(status);
  }
  for (std::size_t p = 0; p < count; ++p) {
    const auto* first = flag + p * ranks;
    const auto* other = std::find_if(
        first, first + ranks, [&](double value) { return value != *first; });
    SHERD_CHECK_AS(
        kPeerMismatch, other == first + ranks,
        "[fsdp] ranks disagree on requires_grad of parameter ",
        model_.parameters[p].name, ": rank 0 has ",
        *first != 0.0 ? "true" : "false", ", rank ", other - first, " has ",
        *other != 0.0 ? "true" : "false");
  }
}

// The order of first visits in forward is that of the model.
void FsdpEngine::note_visit(const UnitCache::Visit& visit) {
  for (const auto unit : visit) {
    const auto u = static_cast<std::size_t>(unit);
    if (!was_visited_[u] && !autograd::in_backward()) {
      was_visited_[u] = true;
      visited_.push_back(unit);
    }
  }
}

// ---- backward ----

void FsdpEngine::gradient_arrived(int parameter, const at::Tensor& gradient) {
  const std::lock_guard lock(mu_);
  check_open();
  SHERD_CHECK_AS(
      kFailedPrecondition, !summoned_parameters_->open(),
      "[fsdp] a backward ran inside summon_full_parameters(); end the scope "
      "first");
  note_backward();
  if (no_sync_scopes_ > 0) {
    gradients_->keep(parameter, gradient);
    return;
  }
  if (!gradients_->started()) {
    SHERD_CHECK_AS(
        kFailedPrecondition, !unpublished_ || !slices_->writes_in_backward(),
        "[fsdp] a second backward before the step of an optimizer that "
        "updates "
        "in backward; call step() after each, or add micro-batches up under "
        "no_sync()");
    order_reductions();
  }
  if (auto status = gradients_->arrived(parameter, gradient); !status.ok()) {
    fail(status);
  }
  (void)exchange_->progress();
}

// Units used last in forward have their gradients first. Ranks that left out
// different visits have different orders, which the exchange takes.
void FsdpEngine::order_reductions() {
  gradients_->expect();
  gradients_->set_partial(options_.replicas > 1 && partial_sync_scopes_ > 0);
  if (!visited_.empty()) {
    gradients_->set_order({visited_.rbegin(), visited_.rend()});
  }
}

bool FsdpEngine::has_gradient(int parameter) const {
  return slices_->has_gradient(parameter) || gradients_->keeps(parameter);
}

void FsdpEngine::clear_gradient(int parameter) {
  slices_->clear_gradient(parameter);
  gradients_->drop_kept(parameter);
}

void FsdpEngine::end_of_backward(const std::exception_ptr& failure) {
  hide_module_gradients();
  if (!usable()) {
    return;
  }
  if (!gradients_->started()) {
    order_reductions();
  }
  visited_.clear();
  was_visited_.assign(model_.units.size(), false);
  if (!failure) {
    cache_->end_backward();
  }
  const auto reason = failure ? autograd::reason_of(failure) : "";
  const bool synchronised = no_sync_scopes_ == 0;
  const auto diverged = synchronised
      ? gradients_->finish(reason, cache_->departed())
      : gradients_->finish_kept(reason, cache_->departed());
  const auto& status = diverged.status();
  if (diverged.ok()) {
    if (diverged.value()) {
      cache_->leave_plan();
    }
    read_since_backward_ = false;
    if (synchronised && !gradients_->partial()) {
      synchronised_backward_ended();
    }
    if (!cache_->planned() && !compared_) {
      // No plan is compared there, and forwards may run on some ranks alone.
      (void)all_ranks_agree(0);
    }
    show_module_gradients();
    integrity_->check();
  } else if (status.code() != ErrorCode::kAborted) {
    fail(status);
  } else if (synchronised && slices_->writes_in_backward()) {
    const auto told = close_with_failure(
        {ErrorCode::kAborted,
         str(status.message(),
             "; an optimizer has updated some parameters in this backward "
             "already, so that this model is lost")});
    if (!failure) {
      told.throw_if_failed();
    }
  } else {
    // Ranks left this backward at different places; the next forward must find
    // the same units whole on all of them.
    read_since_backward_ = false;
    cache_->leave_plan();
    if (!failure) {
      status.throw_if_failed();
    }
  }
}

void FsdpEngine::synchronised_backward_ended() {
  ++backwards_;
  unpublished_ = true;
  if (!idle_.change_due()) {
    idle_.note_gradients(slices_->tensors());
  }
  if (backwards_ == IdleOptimizerDetector::kBackwards) {
    warn_of_idle_optimizer();
  }
}

// Collective: every rank is at the end of the same backward.
void FsdpEngine::warn_of_idle_optimizer() {
  const bool changed = published_by_hand_ || idle_.changed(slices_->tensors());
  const auto found = at::full(
      {2}, changed ? 1.0 : 0.0,
      at::TensorOptions().dtype(c10::ScalarType::Double));
  found.mutable_data_ptr<double>()[1] = idle_.change_due() ? 1.0 : 0.0;
  const auto status =
      exchange_->all_reduce(found, exchange::ScalarReduceOp::kMax);
  if (!status.ok()) {
    fail(status);
  }
  const auto* any = found.const_data_ptr<double>();
  if (any[0] == 0.0 && any[1] != 0.0 && world_rank() == 0) {
    idle_.warn(backwards_);
  }
}

// ---- the optimizer's side ----

NamedParameters FsdpEngine::named_parameters() {
  NamedParameters named;
  for (const auto& slice : slices_->all()) {
    named.items.push_back({slice.name, slice.tensor});
  }
  named.publish = while_alive(
      this, [](FsdpEngine& self) { self.publish_now(/*keep_frozen=*/true); });
  if (exchange_->takes_sinks()) {
    named.update_in_backward =
        while_alive(this, [](FsdpEngine& self, BackwardUpdate update) {
          return self.register_backward_update(std::move(update));
        });
  }
  named.claim = while_alive(
      this, [](FsdpEngine& self) { return self.claim_publisher(); });
  named.whole.items = slices_->whole_parameters();
  if (options_.strategy == Strategy::kNoShard) {
    return named;  // Every rank has whole slices.
  }
  named.whole.rank = owner();
  named.whole.ranks = options_.both_axes ? world_size() : options_.ranks;
  if (shares_gradients()) {
    named.whole.all_reduce_max =
        while_alive(this, [](FsdpEngine& self, const at::Tensor& numbers) {
          self.all_reduce_max(numbers);
        });
  }
  return named;
}

std::shared_ptr<void> FsdpEngine::register_backward_update(
    BackwardUpdate update) {
  const std::lock_guard lock(mu_);
  return slices_->register_backward_update(std::move(update));
}

void FsdpEngine::all_reduce_max(const at::Tensor& numbers) {
  const std::lock_guard lock(mu_);
  check_open();
  auto status = exchange_->all_reduce(numbers, exchange::ScalarReduceOp::kMax);
  if (!status.ok()) {
    fail(status);
  }
}

double FsdpEngine::clip_grad_norm(double max_norm, const ClipOptions& options) {
  const std::lock_guard lock(mu_);
  check_open();
  SHERD_CHECK_AS(
      kFailedPrecondition, !slices_->updates_in_backward(),
      "[fsdp] clip_grad_norm() with an optimizer that updates in backward: "
      "there is no gradient left to clip; construct it without in_backward");
  const auto sum_over_ranks = [&](const at::Tensor& value) {
    if (options_.strategy == Strategy::kNoShard) {
      return;  // Every rank has all gradients already.
    }
    const auto op = std::isinf(options.p)
        ? exchange::ScalarReduceOp::kMax
        : exchange::ScalarReduceOp::kSumOverOwners;
    if (auto status = exchange_->all_reduce(value, op); !status.ok()) {
      fail(status);
    }
  };
  return clip_gradients(slices_->tensors(), max_norm, options, sum_over_ranks);
}

std::shared_ptr<void> FsdpEngine::claim_publisher() {
  const std::lock_guard lock(mu_);
  auto claim = publishers_.lock();
  if (claim == nullptr) {
    claim = std::make_shared<int>();
    publishers_ = claim;
  }
  return claim;
}

void FsdpEngine::publish() { publish_now(/*keep_frozen=*/false); }

void FsdpEngine::publish_now(bool keep_frozen) {
  const std::lock_guard lock(mu_);
  check_open();
  SHERD_CHECK_AS(
      kFailedPrecondition, !summoned_parameters_->open(),
      "[fsdp] publish() inside summon_full_parameters(); end the scope first");
  integrity_->check();
  SHERD_CHECK_AS(
      kFailedPrecondition, !read_since_backward_ || !writes_in_place(),
      "[fsdp] parameters were read after the last backward, and other ranks "
      "may be reading still what this one has written in shared memory; "
      "expected a backward between reading and writing, or writing inside "
      "summon_full_parameters()");
  published_by_hand_ = true;
  publish_locked(keep_frozen);
}

void FsdpEngine::publish_locked(bool keep_frozen) {
  cache_->end_step(keep_frozen);
  unpublished_ = false;
  compared_ = false;
  ++generation_;
  if (auto status = exchange_->publish(generation_); !status.ok()) {
    fail(status);
  }
  bump_versions();
}

// ---- full parameters ----

void FsdpEngine::begin_summon(const SummonOptions& options) {
  const std::lock_guard lock(mu_);
  check_open();
  SHERD_CHECK_AS(
      kFailedPrecondition, !summoned_parameters_->open(),
      "[fsdp] summon_full_parameters() inside another such scope");
  SHERD_CHECK_AS(
      kFailedPrecondition,
      !writes_in_place() || !(autograd::in_backward() || gradients_->started()),
      "[fsdp] summon_full_parameters() inside a backward needs the room of "
      "gradients in shared memory; call it before or after");
  integrity_->check();
  if (unpublished_) {
    publish_locked(/*keep_frozen=*/false);
  }
  summoned_parameters_->begin(options.read_only);
  read_since_backward_ = false;
}

at::Tensor FsdpEngine::summoned(const std::string& name) {
  const std::lock_guard lock(mu_);
  SHERD_CHECK_AS(
      kFailedPrecondition, summoned_parameters_->open(),
      "[fsdp] this summon scope has ended");
  return summoned_parameters_->tensor(name);
}

void FsdpEngine::end_summon() {
  const std::lock_guard lock(mu_);
  if (!summoned_parameters_->open()) {
    return;
  }
  const bool may_have_written = summoned_parameters_->may_write();
  summoned_parameters_->end();
  if (may_have_written && usable()) {
    publish_locked(/*keep_frozen=*/false);
  }
}

// ---- the rest ----

int& FsdpEngine::scopes_of(NoSyncAxis axis) {
  // Where all ranks are replicas there is nothing but the replicate axis.
  const bool both =
      axis == NoSyncAxis::kBoth || options_.strategy == Strategy::kNoShard;
  return both ? no_sync_scopes_ : partial_sync_scopes_;
}

void FsdpEngine::begin_no_sync(NoSyncAxis axis) {
  const std::lock_guard lock(mu_);
  check_open();
  ++scopes_of(axis);
}

void FsdpEngine::end_no_sync(NoSyncAxis axis) {
  const std::lock_guard lock(mu_);
  --scopes_of(axis);
}

void FsdpEngine::unshard() {
  const std::lock_guard lock(mu_);
  check_open();
  if (summoned_parameters_->open()) {
    return;  // Everything is whole.
  }
  note_phase("unshard()");
  cache_->unshard();
}

void FsdpEngine::reshard() {
  const std::lock_guard lock(mu_);
  check_open();
  cache_->leave_plan();
}

ShardReport FsdpEngine::report() {
  const std::lock_guard lock(mu_);
  const auto& counters = exchange_->counters();
  ShardReport report;
  report.units = static_cast<int>(model_.units.size());
  report.budget_bytes = cache_->budget_bytes();
  report.unsharded_bytes_peak = cache_->resident_bytes_peak();
  report.shard_bytes = slices_->shard_bytes() + counters.copied_shard_bytes;
  report.gradient_slot_bytes_peak = counters.gradient_bytes_peak;
  report.unshards = counters.unshards;
  report.unsharded_bytes = counters.unsharded_bytes;
  report.reduces = counters.reduces;
  report.reduces_under_way_peak = counters.reduces_under_way_peak;
  report.backwards = backwards_;
  report.plan = cache_->plan_report();
  return report;
}

void FsdpEngine::close() {
  const std::lock_guard lock(mu_);
  if (closed_) {
    return;
  }
  closed_ = true;
  if (module_gradients_) {  // Not if it never started.
    module_gradients_->close();
  }
  if (error_.ok() && !published_by_hand_ && backwards_ > 1 &&
      idle_.change_due() && !idle_.changed(slices_->tensors())) {
    idle_.warn(backwards_);
  }
  exchange_->close(Status());  // Changes nothing after a failure.
  for (const auto& flats : cache_->storages()) {
    for (auto& storage : flats) {
      storage->disconnect(
          "sherd: the sharding handle of this model is closed; its parameters "
          "are gone");
    }
  }
  for (const auto& parameter : model_.parameters) {
    if (parameter.trainable >= 0) {
      autograd::remove_gradient_hook(parameter.tensor);
    }
  }
}

}  // namespace sherd::fsdp
