// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_plan.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include "base/check.h"

namespace sherd::plan {
namespace {

constexpr std::int64_t kSumMax = std::numeric_limits<std::int64_t>::max() / 8;

constexpr std::array<UnitChoice, 4> kChoices = {
    {{false, false}, {true, false}, {false, true}, {true, true}}};

struct Cost {
  std::int64_t bytes = 0;
  std::int64_t ns = 0;
};

Cost cost_of(const UnitMemory& unit, UnitChoice choice) {
  return {
      .bytes = (choice.keep_whole ? unit.whole_bytes : 0) +
          (choice.keep_activations ? unit.activation_bytes : 0),
      .ns = (choice.keep_whole ? 0 : unit.gather_ns) +
          (choice.keep_activations ? 0 : unit.recompute_ns)};
}

void add_checked(std::int64_t value, std::int64_t& sum) {
  SHERD_CHECK(
      value >= 0 && value <= kSumMax - sum, "[plan] a figure of ", value,
      " in the memory of a step; expected at least 0 and a sum below 2^60");
  sum += value;
}

void check(const StepMemory& step) {
  SHERD_CHECK(
      step.base_bytes.size() == step.units.size() + 1, "[plan] expected ",
      step.units.size() + 1, " peaks of the memory of a step, found ",
      step.base_bytes.size());
  std::int64_t bytes = 0;
  std::int64_t ns = 0;
  add_checked(step.base_ns, ns);
  for (const auto& unit : step.units) {
    add_checked(unit.whole_bytes, bytes);
    add_checked(unit.activation_bytes, bytes);
    add_checked(unit.gather_ns, ns);
    add_checked(unit.recompute_ns, ns);
  }
  for (const auto base : step.base_bytes) {
    auto sum = bytes;
    add_checked(base, sum);
  }
}

// At index k: how many bytes the first k units may keep. What they keep stays for all later units.
std::vector<std::int64_t> room_of(
    const StepMemory& step, std::int64_t bytes_max) {
  std::vector<std::int64_t> room(step.base_bytes.size());
  auto least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t k = room.size(); k-- > 0;) {
    least = std::min(least, bytes_max - step.base_bytes[k]);
    room[k] = least;
  }
  return room;
}

// A choice for the units so far.
struct State {
  std::int64_t bytes = 0;
  std::int64_t ns = 0;
  // The state before the last unit, and the choice for it.
  std::size_t from = 0;
  UnitChoice choice;
};

enum class Rounding { kUp, kDown };

// Leaves only states that no other state beats in both bytes and time, sorted by bytes.
void keep_best(std::vector<State>& states) {
  std::stable_sort(
      states.begin(), states.end(), [](const State& a, const State& b) {
        return std::pair(a.bytes, a.ns) < std::pair(b.bytes, b.ns);
      });
  auto fastest = std::numeric_limits<std::int64_t>::max();
  std::erase_if(states, [&](const State& state) {
    const bool beaten = state.ns >= fastest;
    fastest = std::min(fastest, state.ns);
    return beaten;
  });
}

// Dynamic programming over the units, by Pareto-optimal states of bytes and time.
class Search {
 public:
  Search(
      const StepMemory& step,
      const MemoryPlanOptions& options,
      Rounding rounding)
      : step_(step),
        options_(options),
        rounding_(rounding),
        room_(room_of(step, options.bytes_max)) {
    layers_.push_back({State()});
    for (std::size_t unit = 0; unit < step.units.size(); ++unit) {
      extend(unit);
    }
  }

  bool rounded() const { return rounded_; }
  std::int64_t best_ns() const {
    return step_.base_ns + layers_.back().back().ns;
  }

  std::vector<UnitChoice> best() const {
    std::vector<UnitChoice> choice(step_.units.size());
    auto state = layers_.back().size() - 1;
    for (std::size_t unit = choice.size(); unit-- > 0;) {
      choice[unit] = layers_[unit + 1][state].choice;
      state = layers_[unit + 1][state].from;
    }
    return choice;
  }

 private:
  void extend(std::size_t unit) {
    const auto room = room_[unit + 1];
    const auto& before = layers_.back();
    std::vector<State> states;
    for (std::size_t from = 0; from < before.size(); ++from) {
      for (const auto choice : kChoices) {
        const auto cost = cost_of(step_.units[unit], choice);
        const auto bytes = before[from].bytes + cost.bytes;
        if (bytes <= room) {
          states.push_back({bytes, before[from].ns + cost.ns, from, choice});
        }
      }
    }
    keep_best(states);
    if (states.size() > options_.states_max) {
      round(room, states);
    }
    layers_.push_back(std::move(states));
  }

  // With bytes rounded up, states that fit still fit; with bytes rounded down, no state that fits
  // is lost.
  void round(std::int64_t room, std::vector<State>& states) {
    rounded_ = true;
    const auto grain =
        room / static_cast<std::int64_t>(options_.states_max) + 1;
    for (auto& state : states) {
      state.bytes = state.bytes / grain * grain +
          (rounding_ == Rounding::kUp && state.bytes % grain > 0 ? grain : 0);
    }
    // The state that keeps nothing has no bytes to round, so at least one is left.
    std::erase_if(
        states, [&](const State& state) { return state.bytes > room; });
    keep_best(states);
  }

  const StepMemory& step_;
  const MemoryPlanOptions& options_;
  const Rounding rounding_;
  const std::vector<std::int64_t> room_;
  std::vector<std::vector<State>> layers_;  // After each unit.
  bool rounded_ = false;
};

}  // namespace

std::int64_t memory_floor(const StepMemory& step) {
  check(step);
  return *std::max_element(step.base_bytes.begin(), step.base_bytes.end());
}

MemoryPlan cost_of(const StepMemory& step, std::vector<UnitChoice> choice) {
  check(step);
  SHERD_CHECK(
      choice.size() == step.units.size(), "[plan] expected choices for ",
      step.units.size(), " units, found ", choice.size());
  MemoryPlan plan{
      .units = std::move(choice),
      .peak_bytes = step.base_bytes.front(),
      .step_ns = step.base_ns};
  std::int64_t kept_bytes = 0;
  for (std::size_t unit = 0; unit < plan.units.size(); ++unit) {
    const auto cost = cost_of(step.units[unit], plan.units[unit]);
    kept_bytes += cost.bytes;
    plan.step_ns += cost.ns;
    plan.peak_bytes =
        std::max(plan.peak_bytes, step.base_bytes[unit + 1] + kept_bytes);
  }
  return plan;
}

Result<MemoryPlan> plan_memory(
    const StepMemory& step, const MemoryPlanOptions& options) {
  const auto floor = memory_floor(step);
  if (options.bytes_max < floor) {
    return Status(
        ErrorCode::kInvalidArgument,
        str("[plan] a memory limit of ", options.bytes_max,
            " bytes is below its floor of ", floor,
            " bytes, which a step needs that keeps neither units whole nor "
            "activations"));
  }
  const Search search(step, options, Rounding::kUp);
  MemoryPlan plan = cost_of(step, search.best());
  plan.lower_bound_ns = search.rounded()
      ? Search(step, options, Rounding::kDown).best_ns()
      : plan.step_ns;
  return plan;
}

}  // namespace sherd::plan
