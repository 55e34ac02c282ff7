// SPDX-License-Identifier: Apache-2.0
#include "plan/step_plan.h"

#include <set>
#include <utility>

#include "base/hash.h"

namespace sherd::plan {

std::uint64_t digest(const StepTrace& record) {
  Hash64 hash;
  hash.add(static_cast<std::uint64_t>(record.training));
  for (const auto& visit : record.visits) {
    hash.add(static_cast<std::uint64_t>(visit.in_backward));
    hash.add(visit.units.size());
    for (const auto unit : visit.units) {
      hash.add(static_cast<std::uint64_t>(unit));
    }
  }
  for (const auto end : record.backward_ends) {
    hash.add(static_cast<std::uint64_t>(end));
  }
  return hash.value();
}

std::optional<StepPlan> make_step_plan(
    const StepTrace& record,
    const StepPlanOptions& options,
    std::int64_t budget_bytes) {
  ScheduleInput input;
  input.unit_bytes = options.unit_bytes;
  // Without an optimizer step no value changes, so every unit may be carried.
  input.carried = record.training
      ? options.frozen
      : std::vector<bool>(options.unit_bytes.size(), true);
  input.ahead_visits = options.ahead_visits;
  input.budget_bytes.assign(record.visits.size(), budget_bytes);
  for (const auto& visit : record.visits) {
    input.visits.push_back(visit.units);
  }
  auto schedule = make_unit_schedule(input);
  if (!schedule.ok()) {
    return std::nullopt;
  }
  return StepPlan{
      record, std::move(schedule).value(),
      Hash64().add(digest(record)).add(fingerprint(input)).value()};
}

std::vector<UnitId> whole_before(const StepPlan& plan, std::size_t position) {
  std::set<UnitId> whole(
      plan.schedule.initial.begin(), plan.schedule.initial.end());
  for (std::size_t v = 0; v < position; ++v) {
    const auto& actions = plan.schedule.before[v];
    for (const auto unit : actions.reshard) {
      whole.erase(unit);
    }
    whole.insert(actions.unshard.begin(), actions.unshard.end());
  }
  return {whole.begin(), whole.end()};
}

}  // namespace sherd::plan
