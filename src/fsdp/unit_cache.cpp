// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"

namespace sherd::fsdp {
namespace {

// Ascending, each once.
std::vector<UnitId> united(
    std::vector<UnitId> units, const std::vector<UnitId>& others) {
  units.insert(units.end(), others.begin(), others.end());
  std::ranges::sort(units);
  units.erase(std::unique(units.begin(), units.end()), units.end());
  return units;
}

std::string why_empty(const exchange::UnitSpec& unit, std::size_t flat) {
  const auto& names = unit.flats[flat].names;
  return str(
      "sherd: parameter ", names.front(),
      names.size() > 1 ? " (or another of its unit)" : "", " of unit ",
      unit.name,
      " is sharded now; LibTorch's operators bring it in by themselves, a raw "
      "pointer needs sherd::touch(tensor) (C++) or summon_full_parameters(), "
      "saving needs summon_full_parameters(), and PyTorch's profiler needs "
      "with_stack=False");
}

plan::StepPlanOptions plan_options(
    const ModelUnits& model, int prefetch_visits) {
  plan::StepPlanOptions options;
  options.ahead_visits = prefetch_visits;
  options.unit_bytes = bytes_by_unit(model);
  for (const auto& unit : model.units) {
    options.frozen.push_back(starts_frozen(unit));
  }
  return options;
}

}  // namespace

plan::Budget budget_of(
    const ModelUnits& model,
    Strategy strategy,
    std::optional<std::int64_t> bytes,
    int prefetch_visits) {
  const auto sizes = policy_unit_sizes(model);
  if (bytes) {
    return plan::explicit_budget(sizes, *bytes);
  }
  switch (strategy) {
    case Strategy::kFullShard:
      return plan::full_shard_budget(sizes, prefetch_visits);
    case Strategy::kShardGradOp:
      return plan::shard_grad_op_budget(sizes);
    case Strategy::kNoShard:
      break;
  }
  return {};
}

UnitCache::UnitCache(
    const ModelUnits& model, exchange::Exchange& exchange, Options options)
    : model_(model),
      exchange_(exchange),
      options_(std::move(options)),
      unit_bytes_(bytes_by_unit(model)),
      all_bytes_(std::accumulate(unit_bytes_.begin(), unit_bytes_.end(), 0LL)),
      residency_(unit_bytes_, options_.budget),
      follower_(plan_options(model, options_.prefetch_visits)) {}

void UnitCache::make_storages(autograd::ParameterUseListener* listener) {
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    auto& flats = storages_.emplace_back();
    auto& why = why_empty_.emplace_back();
    for (std::size_t f = 0; f < model_.units[u].flats.size(); ++f) {
      const auto& flat = model_.units[u].flats[f];
      flats.push_back(std::make_unique<autograd::ManagedStorage>(
          listener, static_cast<int>(u), static_cast<int>(f),
          exchange::flat_bytes(flat), model_.device,
          model_.traits[u].casts[f]));
      why.push_back(why_empty(model_.units[u], f));
      flats.back()->empty(why.back());
    }
  }
}

// ---- following the plan ----

void UnitCache::visit(const Visit& units, bool training, bool in_backward) {
  if (planned() && !uneven_) {
    // Operators nest: the outer one's units stay whole meanwhile.
    const auto together = united(units, residency_.pinned_units());
    const auto budget = residency_.budget_bytes().value_or(all_bytes_);
    const bool first = follower_.begins_step(
        kept_.empty() ? together : united(units, pinned_by_operators()),
        training || in_backward, budget);
    if (first && !in_backward) {
      begin_step(training);
    }
    if (!first || !in_backward) {
      carry_out(follower_.visit(together, in_backward), in_backward);
    }
  }
  bring_in(units, in_backward);
  for (const auto unit : units) {
    finish(unit);
    early_.erase(unit);
  }
  keep(units);
}

// Units that are kept whole are pinned, too, but only from their own first visit of a step on.
UnitCache::Visit UnitCache::pinned_by_operators() const {
  auto pinned = residency_.pinned_units();
  std::erase_if(pinned, [&](UnitId unit) {
    return residency_.pins(unit) == static_cast<int>(kept_.count(unit));
  });
  return pinned;
}

// Collective: ranks compare the plans they know, and what they have left out of them.
void UnitCache::begin_step(bool training) {
  const auto shorter_step = follower_.shorter_step(training);
  const auto agree =
      options_.all_ranks_agree(follower_.fingerprint(), shorter_step);
  if (!agree.plans) {
    follower_.forget_plans();
  } else if (agree.shorter_step && shorter_step != 0) {
    follower_.prefer_shorter_step(
        training, residency_.budget_bytes().value_or(all_bytes_));
  }
  follower_.begin_step(training, agree.plans && !by_hand_);
}

void UnitCache::carry_out(
    const plan::StepFollower::DueActions& due, bool in_backward) {
  if (due.whole) {
    // Units that the plan does not expect to be whole would take its room.
    drop_if([&](UnitId unit) {
      return !residency_.pinned(unit) && !early_.contains(unit) &&
          !std::ranges::binary_search(*due.whole, unit);
    });
    start(admit(*due.whole), {.in_backward = in_backward, .planned = true});
  }
  for (const auto& [actions, of_backward] : due.actions) {
    if (!follower_.following()) {
      return;  // There was no room for an earlier one.
    }
    for (const auto unit : actions->reshard) {
      if (residency_.resident(unit) && !residency_.pinned(unit)) {
        drop(unit);
      }
    }
    // In a backward there may still be actions of a forward that was left out.
    start(
        admit(actions->unshard),
        {.in_backward = in_backward || of_backward, .planned = true});
  }
}

// Counts the units that are not whole yet as whole, and returns them. Departs from the plan if
// there is no room because units outside the plan are whole.
UnitCache::Visit UnitCache::admit(const Visit& units) {
  Visit admitted;
  for (const auto unit : units) {
    early_.erase(unit);
    if (residency_.resident(unit)) {
      continue;
    }
    make_room(unit);
    if (!fits(unit)) {
      follower_.depart();
      break;
    }
    residency_.admit(unit);
    admitted.push_back(unit);
  }
  return admitted;
}

bool UnitCache::fits(UnitId unit) const {
  const auto budget = residency_.budget_bytes();
  return !budget ||
      residency_.resident_bytes() +
          unit_bytes_[static_cast<std::size_t>(unit)] <=
      *budget;
}

// Drops units that came early, as far as this one needs their room.
void UnitCache::make_room(UnitId unit) {
  const Visit early(early_.begin(), early_.end());
  for (const auto other : early) {
    if (!fits(unit) && !residency_.pinned(other)) {
      drop(other);
    }
  }
}

void UnitCache::start_early(const Visit& units, bool in_backward) {
  for (const auto unit : units) {
    if (!residency_.resident(unit) && fits(unit)) {
      residency_.admit(unit);
      early_.insert(unit);
      start({unit}, {.in_backward = in_backward || uneven_});
    }
  }
  assert_within_budget();
}

bool UnitCache::finish_early(const Visit& units) {
  for (const auto unit : units) {
    finish(unit);
  }
  return std::ranges::all_of(
      units, [&](UnitId unit) { return residency_.resident(unit); });
}

void UnitCache::drop_unused(const Visit& units) {
  const auto used = pinned_by_operators();
  for (const auto unit : units) {
    if (!options_.replicated && residency_.resident(unit) &&
        std::ranges::find(used, unit) == used.end()) {
      drop(unit);
    }
  }
}

void UnitCache::end_backward() {
  carry_out(follower_.end_backward(), /*in_backward=*/true);
}

std::uint64_t UnitCache::settle_order() {
  residency_.order_by_unit();
  if (uneven_ || options_.replicated || options_.one_sided) {
    return 0;
  }
  Hash64 hash;
  for (UnitId unit = 0; unit < residency_.units(); ++unit) {
    hash.add(static_cast<std::uint64_t>(residency_.resident(unit)));
  }
  return hash.value();
}

void UnitCache::reshard() {
  follower_.leave();
  Visit all(static_cast<std::size_t>(residency_.units()));
  std::iota(all.begin(), all.end(), 0);
  drop_unused(all);
}

void UnitCache::leave_plan() {
  follower_.leave();
  drop_all();
}

void UnitCache::abandon_step() {
  follower_.drop_step();
  drop_all();
}

void UnitCache::set_uneven(bool uneven) {
  if (uneven_ != uneven) {
    uneven_ = uneven;
    abandon_step();
  }
}

void UnitCache::unshard() {
  follower_.leave();
  by_hand_ = true;
  for (UnitId unit = 0; unit < residency_.units(); ++unit) {
    if (!residency_.resident(unit) && fits(unit)) {
      bring_in({unit}, false);
      finish(unit);
      keep({unit});
    }
  }
}

void UnitCache::release_all() {
  follower_.leave();
  drop_if([](UnitId) { return true; });
}

void UnitCache::end_step(bool keep_frozen) {
  by_hand_ = false;
  early_.clear();
  follower_.end_step(residency_.budget_bytes().value_or(all_bytes_));
  drop_if([&](UnitId unit) {
    return !options_.replicated && !(keep_frozen && frozen(unit));
  });
}

void UnitCache::thaw(UnitId unit) {
  leave_plan();
  follower_.thaw(unit);
}

// ---- moving units ----

void UnitCache::settle() const {
  if (recorder_ != nullptr) {
    recorder_->settle();
  }
}

void UnitCache::note_gather(
    UnitId unit, StepRecorder::Gather gather, Instant begin) {
  if (recorder_ != nullptr) {
    recorder_->note_gather(unit, gather, SteadyClock().now() - begin);
  }
}

// Starts their gathers. REQUIRES: they were counted as whole.
void UnitCache::start(const Visit& units, exchange::UnshardOptions options) {
  options.unsharded_bytes_max = budget_bytes();
  start_within(units, options);
}

void UnitCache::start_within(
    const Visit& units, const exchange::UnshardOptions& options) {
  for (const auto unit : units) {
    settle();
    const auto begin = SteadyClock().now();
    options_.require(exchange_.start_unshard(unit, options));
    note_gather(unit, StepRecorder::Gather::kBegins, begin);
    on_their_way_.insert(unit);
  }
}

// Makes the unit whole if its gather was started.
void UnitCache::finish(UnitId unit) {
  if (on_their_way_.erase(unit) == 0) {
    return;
  }
  fill(unit, addresses_of(unit));
}

// Waits for the unit's gather.
std::vector<void*> UnitCache::addresses_of(UnitId unit) {
  settle();
  const auto begin = SteadyClock().now();
  auto addresses = exchange_.wait_for_unshard(unit);
  options_.require(addresses.status());
  settle();
  note_gather(unit, StepRecorder::Gather::kGoesOn, begin);
  return std::move(addresses).value();
}

void UnitCache::drop(UnitId unit) {
  finish(unit);
  early_.erase(unit);
  if (kept_.erase(unit) > 0) {
    residency_.unpin(unit);
  }
  SHERD_CHECK_AS(
      kFailedPrecondition, !residency_.pinned(unit), "[fsdp] unit ",
      model_.unit(unit).name,
      " is in use by an operator or sherd::touch(); expected no use that goes "
      "on at the end of a backward, in an optimizer's step or in publish(), "
      "which drop whole units");
  residency_.drop(unit);
  empty(unit);
  exchange_.reshard(unit);
}

void UnitCache::drop_if(const std::function<bool(UnitId)>& which) {
  for (UnitId unit = 0; unit < residency_.units(); ++unit) {
    if (residency_.resident(unit) && which(unit)) {
      drop(unit);
    }
  }
}

void UnitCache::drop_all() {
  drop_if([&](UnitId) { return !options_.replicated; });
}

void UnitCache::bring_in(const Visit& units, bool in_backward) {
  auto decision = residency_.visit(units);
  decision.status().throw_if_failed();
  const auto& now = decision.value();
  for (const auto unit : now.evict) {
    drop(unit);
  }
  if (now.grown_budget_bytes) {
    log_info("[fsdp] " + now.reason);
  }
  start(now.fetch, {.in_backward = in_backward || uneven_});
  assert_within_budget();
}

void UnitCache::keep(const Visit& units) {
  for (const auto unit : units) {
    if (model_.traits[static_cast<std::size_t>(unit)].keep_whole &&
        kept_.insert(unit).second) {
      residency_.pin(unit);
    }
  }
}

void UnitCache::set_budget_bytes(std::int64_t bytes) {
  drop_all();
  residency_.set_budget_bytes(bytes);
  follower_.forget_plans();
}

void UnitCache::set_budget(plan::Budget budget) {
  // An evaluation may have begun a step that nothing ends.
  follower_.end_step(residency_.budget_bytes().value_or(all_bytes_));
  drop_all();
  residency_.set_budget(std::move(budget));
  note_slots_kept();
  follower_.replan(residency_.budget_bytes().value_or(all_bytes_));
}

void UnitCache::pin(const Visit& units) {
  for (const auto unit : units) {
    residency_.pin(unit);
  }
}

void UnitCache::unpin(UnitId unit) { residency_.unpin(unit); }

void UnitCache::refuse_in_use(const char* what) const {
  const auto used = pinned_by_operators();
  SHERD_CHECK_AS(
      kFailedPrecondition, used.empty(), "[fsdp] ", what, " while unit ",
      model_.unit(used.front()).name,
      " is in use by an operator or sherd::touch(); expected no use that goes "
      "on");
}

void UnitCache::assert_within_budget() {
  resident_bytes_peak_ =
      std::max(resident_bytes_peak_, residency_.resident_bytes());
  if (const auto budget = residency_.budget_bytes()) {
    SHERD_ASSERT(residency_.resident_bytes() <= *budget);
    const auto slot_bytes = exchange_.counters().slot_bytes;
    SHERD_ASSERT(slot_bytes <= std::max(*budget, former_slot_bytes_));
    if (slot_bytes <= *budget) {
      former_slot_bytes_ = 0;
    }
  }
}

PlanReport UnitCache::plan_report() const {
  const auto& counters = follower_.counters();
  PlanReport report;
  report.steps = counters.steps;
  report.steps_planned = counters.steps_planned;
  report.plans_made = counters.plans_made;
  report.deviations = counters.deviations;
  if (const auto* latest = follower_.latest()) {
    const auto& predicted = latest->schedule.report;
    report.gathers = predicted.gathers;
    report.gathered_bytes = predicted.gathered_bytes;
    report.lower_bound_bytes = predicted.lower_bound_bytes;
    report.tenth_more_saves_bytes = predicted.tenth_more_saves_bytes;
  }
  return report;
}

std::vector<void*> UnitCache::fetch(UnitId unit, std::int64_t slot_bytes_max) {
  start_within(
      {unit},
      {.unsharded_bytes_max = slot_bytes_max,
       .precision = exchange::Precision::kFull});
  on_their_way_.erase(unit);
  return addresses_of(unit);
}

void UnitCache::fill(UnitId unit, const std::vector<void*>& addresses) {
  auto& flats = storages_[static_cast<std::size_t>(unit)];
  for (std::size_t f = 0; f < flats.size(); ++f) {
    flats[f]->fill(addresses[f]);
  }
}

void UnitCache::empty(UnitId unit) {
  auto& flats = storages_[static_cast<std::size_t>(unit)];
  for (std::size_t f = 0; f < flats.size(); ++f) {
    flats[f]->empty(why_empty_[static_cast<std::size_t>(unit)][f]);
  }
}

}  // namespace sherd::fsdp
