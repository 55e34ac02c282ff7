// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp_engine.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "autograd/gradient_hook.h"
#include "autograd/param_key.h"
#include "base/check.h"
#include "base/status.h"
#include "fsdp/unit_report.h"

namespace sherd::fsdp {
namespace {

// What ranks must agree on beside the units' flats.
std::vector<std::string> agreed_lines(
    const ModelUnits& model, const FsdpEngine::Options& options) {
  std::vector<std::string> lines;
  if (options.divide_factor) {
    lines.push_back(str("gradients divided by ", *options.divide_factor));
  }
  if (options.prefetch_visits != 1) {
    lines.push_back(str("prefetch_visits ", options.prefetch_visits));
  }
  for (const auto& buffer : model.cast_buffers) {
    lines.push_back(
        str("buffer ", buffer.name, " cast to ", c10::toString(buffer.dtype)));
  }
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const auto& unit = model.units[u];
    const auto& traits = model.traits[u];
    if (traits.keep_whole) {
      lines.push_back(str("unit ", unit.name, " kept whole"));
    }
    for (std::size_t f = 0; f < traits.casts.size(); ++f) {
      const auto& casts = traits.casts[f];
      if (casts == autograd::ActivationCasts()) {
        continue;  // As in most models: nothing to send.
      }
      lines.push_back(
          str("flat ", f, " of unit ", unit.name,
              casts.inputs ? " casts" : " leaves", " inputs, outputs in ",
              casts.outputs ? c10::toString(*casts.outputs) : "any dtype"));
    }
  }
  return lines;
}

}  // namespace

FsdpEngine::FsdpEngine(
    ModelUnits model,
    std::unique_ptr<exchange::Exchange> exchange,
    const Options& options)
    : ShardingEngine(std::move(model)),
      options_(options),
      exchange_(std::move(exchange)),
      log_(exchange_->log()),
      visits_(model_.units.size(), 0),
      was_visited_(model_.units.size(), false) {
  if (options_.memory) {
    meter_ = memory_meter_of(model_.device);
    total_bytes_before_ = meter_->total_bytes_in_use();
  }
  auto budget = exchange_->one_sided()
      ? plan::Budget()
      : budget_of(
            model_, options_.strategy, options_.budget_bytes,
            options_.prefetch_visits);
  const bool replicate = options_.strategy == Strategy::kNoShard;
  exchange::ModelSpec model_spec;
  model_spec.units = model_.units;
  model_spec.placement = replicate ? exchange::ModelPlacement::kReplicate
                                   : exchange::ModelPlacement::kShard;
  model_spec.share_gradients = options_.share_gradients;
  model_spec.shards_on_host = options_.shards_on_host;
  model_spec.unsharded_bytes_max = budget.bytes.value_or(0);
  model_spec.agreed = agreed_lines(model_, options_);
  if (options_.memory) {
    model_spec.agreed.push_back(str("memory_bytes ", options_.memory->bytes));
  }
  exchange_->open(model_spec).throw_if_failed();
  cache_ = std::make_unique<UnitCache>(
      model_, *exchange_,
      UnitCache::Options{
          .budget = std::move(budget),
          .replicated = replicate,
          .one_sided = exchange_->one_sided(),
          .prefetch_visits = options_.prefetch_visits,
          .require = [this](const Status& status) { require(status); },
          .all_ranks_agree =
              [this](std::uint64_t plans, std::uint64_t shorter_step) {
                return all_ranks_agree(plans, shorter_step);
              }});
  slices_ = std::make_unique<Slices>(
      model_, *exchange_, owner(), /*owner_of_all=*/replicate);
  summoned_parameters_ =
      std::make_unique<SummonedParameters>(model_, *cache_, *slices_);
  full_precision_ = std::make_unique<FullPrecisionUnits>(model_, *cache_);
  gradients_ = std::make_unique<exchange::Reducer>(
      model_.units, model_.parameters, *exchange_, *slices_,
      1.0 / options_.divide_factor.value_or(world_size()),
      options_.reductions_under_way_max);
}

FsdpEngine::~FsdpEngine() { close(); }

void FsdpEngine::start(
    const std::function<void(std::size_t parameter)>& initialise_parameter) {
  if (options_.memory) {
    refuse_hopeless_limit();
  }
  autograd::install_param_key();
  autograd::install_backward_engine();
  cache_->make_storages(this);
  for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
    const auto& parameter = model_.parameters[p];
    if (initialise_parameter) {
      initialise_parameter(p);
    }
    slices_->copy_from_full(static_cast<int>(p), parameter.tensor);
    parameter.tensor.mutable_grad().reset();
    autograd::adopt(
        parameter.tensor,
        *cache_->storages()[static_cast<std::size_t>(parameter.unit)]
                           [static_cast<std::size_t>(parameter.flat)],
        model_.offset_of(parameter),
        model_.flat_of(parameter).unsharded_dtype());
  }
  set_gradient_hooks();
  watch_module_gradients();
  idle_.remember(slices_->tensors());
  published_versions_ = slices_->versions();
  if (options_.memory) {
    // Comparing the limit used the exchange when shards had no values yet.
    exchange_->publish(++generation_).throw_if_failed();
    memory_ = std::make_unique<MemoryPlanner>(memory_planner_options());
    if (cache_->planned()) {
      cache_->set_recorder(&memory_->recorder());
    }
  }
}

// Collective; called while the module is still whole. Estimates the memory after sharding:
// parameters and their gradients are freed, unless somebody else holds their memory, shards are
// added, and everything else stays.
void FsdpEngine::refuse_hopeless_limit() {
  const auto options = memory_planner_options();
  auto least = total_bytes_before_ + options.budget_bytes;
  for (const auto& parameter : model_.parameters) {
    for (const auto& freed : {parameter.tensor, parameter.tensor.grad()}) {
      least -= freed.defined() && !freed.is_meta()
          ? static_cast<std::int64_t>(freed.nbytes())
          : 0;
    }
  }
  // With CPU offload they come elsewhere.
  if (!options_.shards_on_host) {
    for (const auto& slice : slices_->all()) {
      least += static_cast<std::int64_t>(slice.tensor.nbytes());
    }
    least += exchange_->counters().copied_shard_bytes;
  }
  MemoryPlanner::refuse_limit_below(options, least);
}

MemoryPlanner::Options FsdpEngine::memory_planner_options() {
  MemoryPlanner::Options options{.limit = *options_.memory, .meter = meter_};
  if (cache_->planned()) {
    options.unit_bytes = bytes_by_unit(model_);
    options.budget_bytes = cache_->budget_bytes();
  }
  options.max_over_ranks = [this](std::vector<double> numbers) {
    return reduced(std::move(numbers), exchange::ScalarReduceOp::kMax);
  };
  return options;
}

// Collective: after the publish of a step that trained.
void FsdpEngine::plan_memory() {
  if (!memory_ || backwards_ == backwards_planned_) {
    return;
  }
  backwards_planned_ = backwards_;
  const auto budget = memory_->step_ended(cache_->budget_bytes());
  if (budget && cache_->planned()) {
    cache_->set_budget_bytes(*budget);
  }
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

std::optional<int> FsdpEngine::used_parameter(
    const autograd::ParameterUse& use) const {
  const auto offset = use.tensor->storage_offset();
  for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
    const auto& parameter = model_.parameters[p];
    const auto begin = model_.offset_of(parameter);
    if (parameter.unit == use.tag->unit && parameter.flat == use.tag->flat &&
        begin <= offset && offset < begin + parameter.tensor.numel()) {
      return static_cast<int>(p);
    }
  }
  return std::nullopt;
}

std::string FsdpEngine::parameter_at(const autograd::ParameterUse& use) const {
  const auto found = used_parameter(use);
  return found ? model_.parameter(*found).name
               : "of unit " + model_.unit(use.tag->unit).name;
}

void FsdpEngine::refuse_write(
    const autograd::ParameterUse& use, const char* operator_name) const {
  SHERD_CHECK_AS(
      kFailedPrecondition,
      std::string_view(operator_name) != "aten::embedding_renorm_", "[fsdp] ",
      operator_name, " would write parameter ", parameter_at(use),
      " in forward, on each rank the rows that it looks up; leave max_norm out "
      "of the Embedding, and renormalise all rows inside "
      "summon_full_parameters() after the optimizer step");
  throw Error(
      str("[fsdp] ", operator_name, " would write parameter ",
          parameter_at(use),
          summoned_parameters_->open()
              ? ", but the summon scope was opened read_only"
              : ", which is sharded: the write would be lost or seen by other "
                "ranks; make optimizers over fsdp.parameters() or "
                "fsdp.named_parameters(), and do other writes inside "
                "summon_full_parameters()"),
      ErrorCode::kFailedPrecondition);
}

// An optimizer may have written the parameter here or on another rank. A parameter that was frozen
// before this backward has no gradient on any rank, so none writes it.
void FsdpEngine::refuse_stale_read(
    const autograd::ParameterUse& use, const char* operator_name) const {
  const auto& flat =
      model_.unit(use.tag->unit).flats[static_cast<std::size_t>(use.tag->flat)];
  if (!flat.trainable || !gradients_->reduced(use.tag->unit)) {
    return;
  }
  const auto parameter = used_parameter(use);
  SHERD_CHECK_AS(
      kFailedPrecondition,
      parameter && !gradients_->may_have_gradient(*parameter), "[fsdp] ",
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
    if (std::ranges::find(visit, use.tag->unit) == visit.end()) {
      visit.push_back(use.tag->unit);
    }
  }
  if (summoned_parameters_->open()) {
    check_summoned_use(uses, operator_name);
    uses_in_scopes_[uses.data()] = scopes_opened_;
    return;  // Its units are whole.
  }
  std::ranges::sort(visit);
  if (full_precision_scope_) {
    if (autograd::in_backward()) {
      refuse_in_full_precision("a backward ran");
    }
    SHERD_CHECK_AS(
        kFailedPrecondition, !autograd::in_graph(), "[fsdp] ", operator_name,
        " uses parameter ", parameter_at(uses[0]),
        " inside full_precision() and records gradients; expected a "
        "torch::NoGradGuard there");
  }
  if (full_precision_->open()) {
    note_visit(visit);
    last_visited_ = visit.back();
    full_precision_->visit(visit);
    uses_in_scopes_[uses.data()] = scopes_opened_;
    return;
  }
  publish_if_due(operator_name);
  note_use();
  note_visit(visit);
  last_visited_ = visit.back();
  in_step_ = in_step_ || autograd::in_graph();
  read_since_backward_ = read_since_backward_ || !autograd::in_backward();
  cache_->visit(visit, autograd::in_graph(), autograd::in_backward());
  cache_->pin(visit);
}

void FsdpEngine::end_use(
    std::span<const autograd::ParameterUse> uses) noexcept {
  const std::lock_guard lock(mu_);
  const auto in_scope = uses_in_scopes_.extract(uses.data());
  const bool in_full_precision = in_scope && full_precision_->open() &&
      in_scope.mapped() == scopes_opened_;
  if (in_scope && !in_full_precision) {
    return;  // It pinned nothing, or the end of its scope has dropped that.
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const auto same_unit = [&](const autograd::ParameterUse& other) {
      return other.tag->unit == uses[i].tag->unit;
    };
    const auto* before = uses.data() + i;
    if (std::none_of(uses.data(), before, same_unit)) {
      const auto unit = uses[i].tag->unit;
      if (in_scope) {
        full_precision_->unpin(unit);
      } else {
        cache_->unpin(unit);
      }
    }
  }
}

UnitCache::RanksAgree FsdpEngine::all_ranks_agree(
    std::uint64_t plans, std::uint64_t shorter_step) {
  constexpr std::uint64_t kLow = 0xffffffff;
  const std::array compared{flags_fingerprint(model_), plans, shorter_step};
  std::vector<double> halves;
  for (const auto number : compared) {
    halves.push_back(static_cast<double>(number >> 32U));
    halves.push_back(static_cast<double>(number & kLow));
  }
  halves = reduced(std::move(halves), exchange::ScalarReduceOp::kSame);
  const auto same = [&](std::size_t i) {
    return halves[2 * i] != 0.0 && halves[2 * i + 1] != 0.0;
  };
  if (!same(0)) {
    refuse_different_flags();
  }
  check_can_train(model_);  // On all ranks or on none.
  compared_ = true;
  return {.plans = same(1), .shorter_step = same(2)};
}

// Collective: every rank knows that flags differ. The error names the first such
// parameter and its ranks.
void FsdpEngine::refuse_different_flags() {
  const auto ranks = static_cast<std::size_t>(world_size());
  const auto count = model_.parameters.size();
  std::vector<double> flags(count * ranks);
  for (std::size_t p = 0; p < count; ++p) {
    const bool set = model_.parameters[p].tensor.requires_grad();
    flags[p * ranks + static_cast<std::size_t>(world_rank())] = set ? 1.0 : 0.0;
  }
  flags = reduced(std::move(flags), exchange::ScalarReduceOp::kSum);
  for (std::size_t p = 0; p < count; ++p) {
    const auto* first = flags.data() + p * ranks;
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
    ++visits_[u];
    if (log_.profiling()) {
      log_.record(
          {.unit = unit,
           .event = FlightEvent::kVisited,
           .step = autograd::in_backward() ? FlightStep::kBackward
                                           : FlightStep::kForward});
    }
    if (!was_visited_[u] && !autograd::in_backward()) {
      was_visited_[u] = true;
      visited_.push_back(unit);
    }
  }
}

// ---- backward ----

void FsdpEngine::gradient_arrived(int parameter, at::Tensor gradient) {
  const std::lock_guard lock(mu_);
  check_open();
  refuse_in_scope("a backward ran");
  note_backward();
  if (gradient_kind() == plan::JoinKind::kKeeps) {
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
  require(gradients_->arrived(parameter, gradient));
  (void)exchange_->progress();
}

// Not where gradients are kept, which would fill the memory that ranks share, nor under a memory
// limit, which does not count that memory.
void FsdpEngine::begin_backward() {
  if (!memory_ && gradient_kind() != plan::JoinKind::kKeeps) {
    exchange_->begin_backward();
  }
}

// Units used last in forward have their gradients first. Ranks that left out different visits have
// different orders, which the exchange accepts, but hooks do not.
void FsdpEngine::order_reductions() {
  gradients_->expect();
  gradients_->set_partial(gradient_kind() == plan::JoinKind::kReducesPartially);
  if (options_.hook) {
    gradients_->set_order(options_.hook->order());
  } else if (!visited_.empty()) {
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
  // It is still set if the end of an earlier backward has failed.
  hooks_due_ = false;
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
  const auto reason = failure ? reason_of(failure) : "";
  const bool synchronised = gradient_kind() != plan::JoinKind::kKeeps;
  // A world of one rank reduces even under no_sync().
  const bool adds_up = synchronised && no_sync_scopes_ > 0;
  gradients_->set_whole_units(cache_->settle_order());
  if (join_) {
    join_->in_round = false;
    cache_->set_uneven(false);
  }
  const auto diverged = synchronised
      ? gradients_->finish(reason, cache_->departed())
      : gradients_->finish_kept(reason, cache_->departed());
  const auto& status = diverged.status();
  if (diverged.ok()) {
    if (diverged.value()) {
      cache_->leave_plan();
    }
    read_since_backward_ = false;
    if (synchronised) {
      note_thawed_units();
    }
    slices_->set_adds_up(adds_up);
    if (synchronised && !gradients_->partial()) {
      synchronised_backward_ended();
      hooks_due_ = gradients_->any_hooks() && !adds_up;
    }
    show_module_gradients();
    if (!cache_->planned() && !compared_) {
      // No plan is compared there, and forwards may run on some ranks alone.
      (void)all_ranks_agree(0, 0);
    }
    check_storages(model_, cache_->storages());
  } else if (status.code() != ErrorCode::kAborted) {
    require(status);
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
    // the same units whole on all of them, and begin a step on all or on none.
    read_since_backward_ = false;
    cache_->abandon_step();
    // Under no_sync() those of earlier backwards have stayed.
    show_module_gradients();
    if (!failure) {
      status.throw_if_failed();
    }
  }
}

// The same on all ranks. If some rank had a gradient for a unit that started frozen, steps change
// the unit from now on.
void FsdpEngine::note_thawed_units() {
  for (UnitId unit = 0; unit < static_cast<UnitId>(model_.units.size());
       ++unit) {
    if (!gradients_->dormant(unit) && cache_->frozen(unit)) {
      cache_->thaw(unit);
    }
  }
}

void FsdpEngine::synchronised_backward_ended() {
  ++backwards_;
  if (options_.hook) {
    options_.hook->synchronised_backward_ended();
  }
  // Whether an optimizer may update shards now; the same on all ranks. A backward that used no
  // parameter of this model belongs to another one, but gradients of earlier ones may be left.
  unpublished_ = unpublished_ || gradients_->any_used() ||
      on_any_rank(slices_->any_gradient())[0];
  step_outstanding_ = false;
  slices_->remember_sample();
  if (!idle_.change_due()) {
    idle_.note_gradients(slices_->tensors());
  }
  if (backwards_ == IdleOptimizerDetector::kBackwards) {
    warn_of_idle_optimizer();
  }
}

// ---- the rest ----

int& FsdpEngine::scopes_of(NoSyncAxis axis) {
  // Where all ranks are replicas there is nothing but the replicate axis.
  const bool both = axis == NoSyncAxis::kBoth ||
      options_.strategy == Strategy::kNoShard ||
      options_.replicas == world_size();
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

void FsdpEngine::synchronize() {
  const std::lock_guard lock(mu_);
  check_open();
  exchange_->synchronize();
}

ShardReport FsdpEngine::report() {
  const std::lock_guard lock(mu_);
  const auto& counters = exchange_->counters();
  ShardReport report;
  report.units = static_cast<int>(model_.units.size());
  report.budget_bytes = cache_->budget_bytes();
  report.unsharded_bytes_peak = std::max(
      cache_->resident_bytes_peak(), full_precision_->resident_bytes_peak());
  const auto frozen = [this](UnitId unit) { return cache_->frozen(unit); };
  report.shard_bytes =
      slices_->shard_bytes(frozen) + counters.copied_shard_bytes;
  report.gradient_slot_bytes_peak = counters.gradient_bytes_peak;
  report.unshards = counters.unshards;
  report.unsharded_bytes = counters.unsharded_bytes;
  report.gather_sent_bytes = counters.gather_sent_bytes;
  report.memory_from_backend = counters.memory_from_backend;
  report.reduces = counters.reduces;
  report.reduces_under_way_peak = counters.reduces_under_way_peak;
  report.backwards = backwards_;
  if (options_.hook) {
    report.hook = options_.hook->hook().name();
    report.hook_bytes = options_.hook->bytes();
  }
  report.plan = cache_->plan_report();
  const auto times = log_.unit_times();
  report.by_unit = list_units(model_);
  for (std::size_t u = 0; u < report.by_unit.size(); ++u) {
    add_use(
        report.by_unit[u], visits_[u],
        u < times.size() ? times[u] : UnitTimes());
  }
  if (memory_) {
    report.memory = memory_->report();
  }
  return report;
}

void FsdpEngine::close() {
  const std::lock_guard lock(mu_);
  if (!begin_close()) {
    return;
  }
  cache_->set_recorder(nullptr);
  memory_.reset();
  summons_.reset();
  collectives_.reset();
  // Not on a device: the check would wait for the device, and fail if the device has failed.
  if (model_.device.is_cpu() && error_.ok() && !published_by_hand_ &&
      backwards_ > 1 && idle_.change_due() &&
      !idle_.changed(slices_->tensors())) {
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
}

}  // namespace sherd::fsdp
