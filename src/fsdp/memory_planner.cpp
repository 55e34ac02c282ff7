// SPDX-License-Identifier: Apache-2.0
#include "fsdp/memory_planner.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include "base/check.h"
#include "base/log.h"

namespace sherd::fsdp {
namespace {

// Memory for an optimizer's state comes in the first step. The second shows how much memory a step
// needs, but makes its pages anew; the next three show how long one takes.
constexpr int kStepMeasuredFirst = 2;
constexpr int kStepMeasuredLast = 5;
constexpr int kStepCorrectedLast = kStepMeasuredLast + 6;
constexpr int kChoicesShown = 6;
constexpr std::int64_t kLeftBytes = 2 << 20;

std::vector<plan::UnitChoice> nothing_kept(const plan::StepMemory& step) {
  return std::vector<plan::UnitChoice>(step.units.size());
}

std::int64_t step_ns(const StepRecorder::Record& record) {
  return record.events.empty() ? 0 : record.events.back().ns;
}

// Numbers that ranks agree on, in both directions, so that each value is the largest of all ranks.
class Agreement {
 public:
  void add(std::int64_t value) {
    numbers_.push_back(static_cast<double>(value));
  }
  void reduce(const MemoryPlanner::Options& options) {
    numbers_ = options.max_over_ranks(std::move(numbers_));
  }
  std::int64_t next() { return static_cast<std::int64_t>(numbers_[next_++]); }
  // Whether all ranks have added the same value, which was added with its negative after it.
  bool next_is_same() {
    const auto most = next();
    return most == -next();
  }

 private:
  std::vector<double> numbers_;
  std::size_t next_ = 0;
};

}  // namespace

MemoryPlanner::MemoryPlanner(Options options)
    : options_(std::move(options)), step_began_(SteadyClock().now()) {
  report_.limit_bytes = options_.limit.bytes;
  const auto least_bytes =
      options_.meter->total_bytes_in_use() + options_.budget_bytes;
  refuse_limit_below(options_, least_bytes);
  options_.meter->start();
  recorder_ = std::make_shared<StepRecorder>(
      static_cast<int>(options_.unit_bytes.size()), options_.meter);
  if (options_.limit.regions) {
    report_.regions = options_.limit.regions->size();
    report_.recomputed = report_.regions;
    options_.limit.regions->set_keeps(
        std::vector<bool>(static_cast<std::size_t>(report_.regions), false));
    options_.limit.regions->set_recorder(recorder_);
  }
}

MemoryPlanner::~MemoryPlanner() {
  if (options_.limit.regions) {
    options_.limit.regions->set_recorder(nullptr);
  }
  recorder_->stop();
  options_.meter->stop();
}

void MemoryPlanner::refuse_limit_below(
    const Options& options, std::int64_t least_bytes) {
  Agreement agreement;
  agreement.add(least_bytes);
  agreement.reduce(options);
  const auto floor = agreement.next();
  SHERD_CHECK(
      options.limit.bytes >= floor, "[fsdp] a memory limit of ",
      options.limit.bytes, " bytes is below its floor, which is more than ",
      floor,
      " bytes: what a process has before the first step, and the units that "
      "must be whole at once");
}

bool MemoryPlanner::measuring() const { return steps_ < kStepMeasuredLast; }

std::optional<std::int64_t> MemoryPlanner::step_ended(
    std::int64_t budget_bytes) {
  const bool measuring_before = measuring();
  ++steps_;
  const auto now = SteadyClock().now();
  report_.last_step_s = seconds(now - step_began_);
  step_began_ = now;
  if (steps_ >= kStepMeasuredFirst && measuring_before) {
    records_.push_back(recorder_->finish_step());
  }
  if (measuring()) {
    if (steps_ < kStepMeasuredFirst) {
      // What this step has left would add to what the next one needs.
      options_.meter->give_back_free_memory();
    }
    recorder_->begin_step();
    return std::nullopt;
  }
  if (measuring_before) {
    budget_bytes_ = budget_bytes;
    return decide();
  }
  return report_.decided && steps_ <= kStepCorrectedLast ? correct()
                                                         : std::nullopt;
}

std::optional<std::int64_t> MemoryPlanner::decide() {
  recorder_->stop();
  options_.meter->give_back_free_memory();
  if (options_.limit.regions) {
    options_.limit.regions->set_recorder(nullptr);
  }
  auto step = agreed_step();
  records_.clear();  // Their events are of no more use.
  if (!step) {
    log_info(
        "[fsdp] memory_bytes: ranks ran different regions, or the first steps "
        "of another model were measured meanwhile; nothing is kept");
    return std::nullopt;
  }
  step_ = std::move(*step);
  report_.floor_bytes = plan::memory_floor(step_);
  const auto plan = plan_within_limit();
  note_choices();
  report_.decided = true;
  return carry_out(plan);
}

// The step with the median of the three times was not held up by anything. If it ran other regions
// than the step whose memory was recorded, the times of the latter are used instead.
std::pair<plan::RecordedMemory, std::vector<plan::UnitMemory>>
MemoryPlanner::measured() const {
  const auto& memory = records_.front();
  std::vector<const StepRecorder::Record*> timed;
  for (std::size_t i = 1; i < records_.size(); ++i) {
    timed.push_back(&records_[i]);
  }
  const auto median =
      timed.begin() + static_cast<std::ptrdiff_t>(timed.size() / 2);
  std::nth_element(
      timed.begin(), median, timed.end(),
      [](const StepRecorder::Record* a, const StepRecorder::Record* b) {
        return step_ns(*a) < step_ns(*b);
      });
  auto found = plan::recorded_memory(memory.events, memory.always_bytes);
  const auto with_median = plan::with_times(
      found, plan::recorded_memory((*median)->events, memory.always_bytes));
  const auto& times = with_median ? **median : memory;
  return {
      with_median.value_or(std::move(found)),
      gathered_units(times.gather_again_ns)};
}

std::optional<plan::StepMemory> MemoryPlanner::agreed_step() {
  auto [mine, gathered] = measured();
  Agreement counts;
  const auto count = recorder_->counts()
      ? static_cast<std::int64_t>(mine.regions.size())
      : std::int64_t{-1};
  counts.add(count);
  counts.add(-count);
  counts.reduce(options_);
  if (!counts.next_is_same() || count < 0) {
    return std::nullopt;
  }
  plan::add_gathered_units(gathered, mine.step);
  Agreement figures;
  for (const auto region : mine.regions) {
    figures.add(region);
    figures.add(-region);
  }
  // The last rank that comes to a gather waits for nobody, so the least wait is what it costs.
  for (const auto& unit : mine.step.units) {
    for (const auto value :
         {unit.whole_bytes, -unit.gather_ns, unit.activation_bytes,
          unit.recompute_ns}) {
      figures.add(value);
    }
  }
  for (const auto bytes : mine.step.base_bytes) {
    figures.add(bytes);
  }
  figures.add(options_.meter->total_bytes_peak());
  figures.add(plan::cost_of(mine.step, nothing_kept(mine.step)).step_ns);
  figures.reduce(options_);
  for (std::size_t i = 0; i < mine.regions.size(); ++i) {
    if (!figures.next_is_same()) {
      return std::nullopt;
    }
  }
  for (auto& unit : mine.step.units) {
    unit.whole_bytes = figures.next();
    unit.gather_ns = -figures.next();
    unit.activation_bytes = figures.next();
    unit.recompute_ns = figures.next();
  }
  for (auto& bytes : mine.step.base_bytes) {
    bytes = figures.next();
  }
  seen_bytes_ = figures.next();
  mine.step.base_ns = 0;
  const auto lost_ns =
      plan::cost_of(mine.step, nothing_kept(mine.step)).step_ns;
  mine.step.base_ns = std::max<std::int64_t>(figures.next() - lost_ns, 0);
  regions_ = std::move(mine.regions);
  return std::move(mine.step);
}

// By unit: the bytes that keeping it would add to the budget, and the time of its second gather. A
// budget of all units keeps everything, so no more than what is missing from it is counted.
std::vector<plan::UnitMemory> MemoryPlanner::gathered_units(
    const std::vector<std::int64_t>& again_ns) const {
  const auto& bytes = options_.unit_bytes;
  auto left = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}) -
      budget_bytes_;
  std::vector<plan::UnitMemory> units;
  for (std::size_t unit = 0; unit < bytes.size(); ++unit) {
    const auto more = again_ns[unit] > 0
        ? std::clamp(
              bytes[unit], std::int64_t{0}, std::max(left, std::int64_t{0}))
        : 0;
    left -= more;
    units.push_back({.whole_bytes = more, .gather_ns = again_ns[unit]});
  }
  return units;
}

// If the limit is below the floor at the first decision, throws an error that names the floor; at
// later decisions, keeps nothing. What messages under way and holes in the heap take differs
// between steps, so some room is left for them if there is any.
plan::MemoryPlan MemoryPlanner::plan_within_limit() {
  const auto floor = plan::memory_floor(step_);
  const auto limit = options_.limit.bytes;
  const auto used = limit < floor && !report_.decided
      ? limit
      : std::max(floor, limit - limit / 100 - kLeftBytes);
  return plan::plan_memory(step_, {.bytes_max = used}).value();
}

MemoryChoice MemoryPlanner::described(
    const plan::MemoryPlan& plan, std::int64_t limit_bytes) const {
  MemoryChoice choice{
      .limit_bytes = limit_bytes,
      .peak_bytes = plan.peak_bytes,
      .budget_bytes = budget_bytes_,
      .recomputed = report_.regions,
      .step_s = seconds(Duration(plan.step_ns)),
      .lower_bound_s = seconds(Duration(plan.lower_bound_ns))};
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const auto kept = plan.units[unit];
    choice.recomputed -= kept.keep_activations ? 1 : 0;
    choice.budget_bytes += kept.keep_whole ? step_.units[unit].whole_bytes : 0;
  }
  return choice;
}

std::int64_t MemoryPlanner::carry_out(const plan::MemoryPlan& plan) {
  const auto choice = described(plan, options_.limit.bytes);
  choice_ = plan.units;
  report_.peak_bytes = choice.peak_bytes;
  report_.budget_bytes = choice.budget_bytes;
  report_.recomputed = choice.recomputed;
  report_.step_s = choice.step_s;
  report_.lower_bound_s = choice.lower_bound_s;
  if (const auto& regions = options_.limit.regions) {
    std::vector<bool> keeps(static_cast<std::size_t>(regions->size()), false);
    // Regions follow the units that are gathered.
    const auto first = plan.units.size() - regions_.size();
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      keeps[static_cast<std::size_t>(regions_[i])] =
          plan.units[first + i].keep_activations;
    }
    regions->set_keeps(std::move(keeps));
  }
  return choice.budget_bytes;
}

// From the floor to what keeps everything.
void MemoryPlanner::note_choices() {
  const std::vector<plan::UnitChoice> all(
      step_.units.size(), {.keep_whole = true, .keep_activations = true});
  const auto most = plan::cost_of(step_, all).peak_bytes;
  const auto room = most - report_.floor_bytes;
  for (int i = 0; i < kChoicesShown; ++i) {
    const auto limit = report_.floor_bytes + room * i / (kChoicesShown - 1);
    report_.choices.push_back(described(
        plan::plan_memory(step_, {.bytes_max = limit}).value(), limit));
  }
}

// Holes in the heap differ between a step that keeps nothing and one that keeps much. The kernel's
// peak shows by how much: what is above the limit is taken back at once, and of what was expected and
// not seen, three quarters are given every second step.
std::optional<std::int64_t> MemoryPlanner::correct() {
  Agreement agreement;
  agreement.add(options_.meter->total_bytes_peak());
  agreement.reduce(options_);
  const auto seen = agreement.next();
  const auto over = seen - options_.limit.bytes;
  const auto unseen = report_.peak_bytes - seen;
  std::int64_t change = 0;
  if (over > 0 && seen > seen_bytes_) {
    change = over + over / 4;
    options_.meter->give_back_free_memory();
  } else if (unseen > 0 && steps_ % 2 == 0) {
    change = -unseen * 3 / 4;
  }
  seen_bytes_ = seen;
  if (change == 0) {
    return std::nullopt;
  }
  keep_whole_units_for_good();
  for (auto& bytes : step_.base_bytes) {
    bytes = std::max<std::int64_t>(bytes + change, 0);
  }
  for (auto& choice : report_.choices) {
    // The floor was seen, and nothing is below it.
    choice.limit_bytes =
        std::max(choice.limit_bytes + change, report_.floor_bytes);
    choice.peak_bytes =
        std::max(choice.peak_bytes + change, report_.floor_bytes);
  }
  const auto before = report_.budget_bytes;
  const auto budget = carry_out(plan_within_limit());
  return budget == before ? std::nullopt : std::optional(budget);
}

// Slots for whole units that were allocated once stay so.
void MemoryPlanner::keep_whole_units_for_good() {
  std::int64_t kept_bytes = 0;
  for (std::size_t i = 0; i < step_.units.size(); ++i) {
    auto& unit = step_.units[i];
    if (choice_[i].keep_whole) {
      kept_bytes += std::exchange(unit.whole_bytes, 0);
      unit.gather_ns = 0;
    }
  }
  budget_bytes_ += kept_bytes;
  for (auto& bytes : step_.base_bytes) {
    bytes += kept_bytes;
  }
}

}  // namespace sherd::fsdp
