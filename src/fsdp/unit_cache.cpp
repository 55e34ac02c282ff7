// SPDX-License-Identifier: Apache-2.0
#include "fsdp/unit_cache.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace sherd::fsdp {
namespace {

std::string why_empty(const exchange::UnitSpec& unit, std::size_t flat) {
  const auto& names = unit.flats[flat].names;
  return str(
      "sherd: parameter ", names.front(),
      names.size() > 1 ? " (or another of its unit)" : "", " of unit ",
      unit.name,
      " is sharded now; LibTorch's operators bring it in by themselves, a raw "
      "pointer needs sherd::touch(tensor) or summon_full_parameters(), saving "
      "needs summon_full_parameters()");
}

plan::StepPlanOptions plan_options(const ModelUnits& model) {
  plan::StepPlanOptions options;
  options.unit_bytes = bytes_by_unit(model);
  for (const auto& unit : model.units) {
    options.frozen.push_back(is_frozen(unit));
  }
  return options;
}

}  // namespace

bool is_frozen(const exchange::UnitSpec& unit) {
  return std::none_of(
      unit.flats.begin(), unit.flats.end(),
      [](const auto& flat) { return flat.trainable; });
}

std::vector<std::int64_t> bytes_by_unit(const ModelUnits& model) {
  std::vector<std::int64_t> bytes;
  for (const auto& unit : model.units) {
    bytes.push_back(exchange::unit_bytes(unit));
  }
  return bytes;
}

UnitCache::UnitCache(
    const ModelUnits& model,
    exchange::Exchange& exchange,
    UnitCacheOptions options)
    : model_(model),
      exchange_(exchange),
      options_(std::move(options)),
      unit_bytes_(bytes_by_unit(model)),
      all_bytes_(std::accumulate(unit_bytes_.begin(), unit_bytes_.end(), 0LL)),
      residency_(unit_bytes_, options_.budget),
      follower_(plan_options(model)) {}

void UnitCache::make_storages(autograd::ParameterUseListener* listener) {
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    auto& flats = storages_.emplace_back();
    for (std::size_t f = 0; f < model_.units[u].flats.size(); ++f) {
      const auto& flat = model_.units[u].flats[f];
      flats.push_back(std::make_unique<autograd::ManagedStorage>(
          listener, static_cast<int>(u), static_cast<int>(f),
          exchange::flat_bytes(flat), c10::kCPU,
          flat.param_dtype ? autograd::ActivationCast::kToParameterDtype
                           : autograd::ActivationCast::kNone));
      flats.back()->empty(why_empty(model_.units[u], f));
    }
  }
}

// ---- following the plan ----

void UnitCache::visit(const Visit& units, bool training, bool in_backward) {
  if (planned()) {
    // Operators nest: the outer one's units stay whole meanwhile.
    auto together = residency_.pinned_units();
    together.insert(together.end(), units.begin(), units.end());
    std::sort(together.begin(), together.end());
    together.erase(
        std::unique(together.begin(), together.end()), together.end());
    const auto budget = residency_.budget_bytes().value_or(all_bytes_);
    const bool first =
        follower_.begins_step(together, training || in_backward, budget);
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
  }
}

// Collective: ranks compare the plans they know.
void UnitCache::begin_step(bool training) {
  const bool agree = options_.all_ranks_agree(follower_.fingerprint());
  if (!agree) {
    follower_.forget_plans();
  }
  follower_.begin_step(training, agree && !by_hand_);
}

void UnitCache::carry_out(const plan::DueActions& due, bool in_backward) {
  if (due.whole) {
    // Units that the plan does not expect to be whole would take its room.
    drop_if([&](UnitId unit) {
      return !residency_.pinned(unit) &&
          !std::binary_search(due.whole->begin(), due.whole->end(), unit);
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
    start(
        admit(actions->unshard), {.in_backward = of_backward, .planned = true});
  }
}

// Counts those of the units as whole that are not yet, and returns them. Departs
// from the plan where there is no room, because units outside it are whole.
UnitCache::Visit UnitCache::admit(const Visit& units) {
  Visit admitted;
  for (const auto unit : units) {
    if (residency_.resident(unit)) {
      continue;
    }
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

void UnitCache::end_backward() {
  carry_out(follower_.end_backward(), /*in_backward=*/true);
}

void UnitCache::leave_plan() {
  follower_.leave();
  drop_all();
}

void UnitCache::unshard() {
  follower_.leave();
  by_hand_ = true;
  for (UnitId unit = 0; unit < residency_.units(); ++unit) {
    if (!residency_.resident(unit) && fits(unit)) {
      bring_in({unit}, false);
      finish(unit);
    }
  }
}

void UnitCache::release_all() {
  follower_.leave();
  drop_if([](UnitId) { return true; });
}

void UnitCache::end_step(bool keep_frozen) {
  by_hand_ = false;
  follower_.end_step(residency_.budget_bytes().value_or(all_bytes_));
  drop_if([&](UnitId unit) {
    return !options_.replicated &&
        !(keep_frozen && is_frozen(model_.unit(unit)));
  });
}

// ---- moving units ----

// Starts their gathers. REQUIRES: they were counted as whole.
void UnitCache::start(const Visit& units, exchange::UnshardOptions options) {
  options.unsharded_bytes_max = budget_bytes();
  for (const auto unit : units) {
    if (auto status = exchange_.start_unshard(unit, options); !status.ok()) {
      options_.fail(status);
    }
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
  auto addresses = exchange_.wait_for_unshard(unit);
  if (!addresses.ok()) {
    options_.fail(addresses.status());
  }
  return std::move(addresses).value();
}

void UnitCache::drop(UnitId unit) {
  finish(unit);
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
  start(now.fetch, {.in_backward = in_backward});
  assert_within_budget();
}

void UnitCache::pin(const Visit& units) {
  for (const auto unit : units) {
    residency_.pin(unit);
  }
}

void UnitCache::unpin(UnitId unit) { residency_.unpin(unit); }

void UnitCache::assert_within_budget() {
  resident_bytes_peak_ =
      std::max(resident_bytes_peak_, residency_.resident_bytes());
  if (const auto budget = residency_.budget_bytes()) {
    SHERD_ASSERT(residency_.resident_bytes() <= *budget);
    SHERD_ASSERT(exchange_.counters().slot_bytes <= *budget);
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

std::vector<void*> UnitCache::fetch(UnitId unit) {
  start({unit}, {.precision = exchange::Precision::kFull});
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
    flats[f]->empty(why_empty(model_.unit(unit), f));
  }
}

}  // namespace sherd::fsdp
