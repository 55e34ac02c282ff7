// SPDX-License-Identifier: Apache-2.0
#include "plan/schedule_testing.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>
#include "base/check.h"

namespace sherd::plan {
namespace {

void add_visit(Visits& visits, std::vector<UnitId> units) {
  if (visits.empty() || visits.back() != units) {
    visits.push_back(std::move(units));
  }
}

std::int64_t size_of(const ScheduleInput& input, UnitId unit) {
  return input.unit_bytes[static_cast<std::size_t>(unit)];
}

template <typename Units>
std::int64_t size_of(const ScheduleInput& input, const Units& units) {
  std::int64_t bytes = 0;
  for (const UnitId unit : units) {
    bytes += size_of(input, unit);
  }
  return bytes;
}

Visits random_visits(
    TestRandom& random, int units, const RandomSteps& options) {
  Visits visits;
  switch (random.in(0, 3)) {
    case 0:
      visits = chain_visits(units, static_cast<int>(random.in(1, 3)));
      break;
    case 1:
      visits = segment_visits(
          units, static_cast<int>(random.in(1, 3)),
          static_cast<int>(random.in(1, 2)));
      break;
    default:
      for (std::int64_t left = random.in(1, options.visits_max); left > 0;
           --left) {
        visits.push_back({static_cast<UnitId>(random.in(0, units - 1))});
      }
  }
  if (visits.size() > static_cast<std::size_t>(options.visits_max)) {
    visits.resize(static_cast<std::size_t>(options.visits_max));
  }
  // A second unit, such as a tied embedding, or an operator over two units.
  if (random.in(0, 1) == 1) {
    const UnitId tied = static_cast<UnitId>(random.in(0, units - 1));
    for (std::vector<UnitId>& set : visits) {
      if (set[0] != tied && random.in(0, 3) == 0) {
        set.push_back(tied);
        std::sort(set.begin(), set.end());
      }
    }
  }
  return visits;
}

// Sets of units as bit masks, so that all states of a visit can be enumerated.
class BruteForce {
 public:
  explicit BruteForce(const ScheduleInput& input) : input_(input) {
    SHERD_CHECK(input.unit_bytes.size() <= 8, "[plan] too many to try all");
    for (unsigned set = 0; set < sets(); ++set) {
      bytes_.push_back(bytes_of(set));
    }
  }

  std::int64_t least() const {
    unsigned carried = 0;
    for (std::size_t unit = 0; unit < input_.carried.size(); ++unit) {
      carried |= input_.carried[unit] ? 1U << unit : 0U;
    }
    std::int64_t least = kNever;
    for (unsigned initial = 0; initial < sets(); ++initial) {
      if ((initial & ~carried) == 0) {
        least = std::min(least, least_from(initial));
      }
    }
    return least;
  }

 private:
  static constexpr std::int64_t kNever =
      std::numeric_limits<std::int64_t>::max() / 4;

  unsigned sets() const { return 1U << input_.unit_bytes.size(); }

  std::int64_t bytes_of(unsigned set) const {
    std::int64_t bytes = 0;
    for (std::size_t unit = 0; unit < input_.unit_bytes.size(); ++unit) {
      bytes += (set >> unit & 1U) != 0 ? input_.unit_bytes[unit] : 0;
    }
    return bytes;
  }

  // What is whole at the end must include what the next step begins with.
  std::int64_t least_from(unsigned initial) const {
    std::vector<std::int64_t> cost(sets(), kNever);
    cost[initial] = 0;
    for (std::size_t visit = 0; visit < input_.visits.size(); ++visit) {
      unsigned needed = 0;
      for (const UnitId unit : input_.visits[visit]) {
        needed |= 1U << static_cast<unsigned>(unit);
      }
      std::vector<std::int64_t> next(sets(), kNever);
      for (unsigned from = 0; from < sets(); ++from) {
        if (cost[from] == kNever) {
          continue;
        }
        // Any part of what is whole and not needed may stay.
        const unsigned free = from & ~needed;
        for (unsigned stays = free;; stays = (stays - 1) & free) {
          const unsigned to = needed | stays;
          if (bytes_[to] <= input_.budget_bytes[visit]) {
            next[to] = std::min(next[to], cost[from] + bytes_[to & ~from]);
          }
          if (stays == 0) {
            break;
          }
        }
      }
      cost = std::move(next);
    }
    std::int64_t least = kNever;
    for (unsigned last = 0; last < sets(); ++last) {
      if ((initial & ~last) == 0) {
        least = std::min(least, cost[last]);
      }
    }
    return least;
  }

  const ScheduleInput& input_;
  std::vector<std::int64_t> bytes_;
};

// Plays the actions of a step and remembers the first mistake.
class Player {
 public:
  Player(const ScheduleInput& input, const UnitSchedule& schedule)
      : input_(input),
        schedule_(schedule),
        whole_(schedule.initial.begin(), schedule.initial.end()) {}

  std::string play() {
    for (const UnitId unit : schedule_.initial) {
      expect(input_.carried[static_cast<std::size_t>(unit)], "kept", unit);
    }
    for (visit_ = 0; visit_ < input_.visits.size(); ++visit_) {
      act(schedule_.before[visit_]);
    }
    for (const UnitId unit : schedule_.initial) {
      expect(whole_.count(unit) == 1, "not whole after the step", unit);
    }
    expect(report_.gathers == schedule_.report.gathers, "gathers");
    expect(
        report_.gathered_bytes == schedule_.report.gathered_bytes,
        "gathered bytes");
    expect(
        schedule_.report.lower_bound_bytes <= report_.gathered_bytes,
        "lower bound");
    return broken_;
  }

 private:
  void act(const VisitActions& actions) {
    const std::vector<UnitId>& set = input_.visits[visit_];
    const auto visited = [&](UnitId unit) {
      return std::binary_search(set.begin(), set.end(), unit);
    };
    for (const UnitId unit : actions.reshard) {
      expect(whole_.erase(unit) == 1, "resharded but not whole", unit);
      expect(!visited(unit), "resharded in use", unit);
    }
    std::size_t need = visit_;
    for (const UnitId unit : actions.unshard) {
      expect(whole_.insert(unit).second, "unsharded twice", unit);
      const std::size_t use = next_use(unit);
      expect(use >= need, "unsharded out of order", unit);
      need = use;
      expect(
          use <= visit_ + static_cast<std::size_t>(input_.ahead_visits),
          "unsharded too early", unit);
      ++report_.gathers;
      report_.gathered_bytes += size_of(input_, unit);
    }
    for (const UnitId unit : set) {
      expect(whole_.count(unit) == 1, "used but not whole", unit);
    }
    expect(
        size_of(input_, whole_) <= input_.budget_bytes[visit_],
        "over the budget");
  }

  std::size_t next_use(UnitId unit) const {
    std::size_t visit = visit_;
    while (
        visit < input_.visits.size() &&
        !std::binary_search(
            input_.visits[visit].begin(), input_.visits[visit].end(), unit)) {
      ++visit;
    }
    return visit;
  }

  void expect(bool holds, const char* what, UnitId unit = -1) {
    if (!holds && broken_.empty()) {
      broken_ = str("visit ", visit_, ", unit ", unit, ": ", what);
    }
  }

  const ScheduleInput& input_;
  const UnitSchedule& schedule_;
  std::set<UnitId> whole_;
  std::size_t visit_ = 0;
  UnitSchedule::Report report_;
  std::string broken_;
};

}  // namespace

Visits chain_visits(int units, int micro_batches) {
  return segment_visits(units, 1, micro_batches);
}

// With segments of one unit the recomputed forward is the backward's own visit.
Visits segment_visits(int units, int segment, int micro_batches) {
  Visits visits;
  for (int batch = 0; batch < micro_batches; ++batch) {
    for (UnitId unit = 0; unit < units; ++unit) {
      add_visit(visits, {unit});
    }
    for (int begin = (units - 1) / segment * segment; begin >= 0;
         begin -= segment) {
      const int end = std::min(units, begin + segment);
      for (UnitId unit = begin; unit < end; ++unit) {
        add_visit(visits, {unit});
      }
      for (UnitId unit = end - 1; unit >= begin; --unit) {
        add_visit(visits, {unit});
      }
    }
  }
  return visits;
}

ScheduleInput schedule_input(
    std::vector<std::int64_t> unit_bytes,
    Visits visits,
    std::int64_t budget_bytes,
    int ahead_visits) {
  const std::size_t units = unit_bytes.size();
  const std::size_t count = visits.size();
  return {
      .unit_bytes = std::move(unit_bytes),
      .visits = std::move(visits),
      .carried = std::vector<bool>(units, false),
      .budget_bytes = std::vector<std::int64_t>(count, budget_bytes),
      .ahead_visits = ahead_visits};
}

ScheduleInput random_step(TestRandom& random, const RandomSteps& options) {
  const int units = static_cast<int>(random.in(1, options.units_max));
  std::vector<std::int64_t> unit_bytes;
  unit_bytes.reserve(static_cast<std::size_t>(units));
  const std::int64_t equal = random.in(1, 9);
  for (int unit = 0; unit < units; ++unit) {
    unit_bytes.push_back(options.equal_units ? equal : random.in(0, 9));
  }
  ScheduleInput input = schedule_input(
      std::move(unit_bytes), random_visits(random, units, options), 0,
      static_cast<int>(random.in(0, options.ahead_visits_max)));
  const bool by_visit = random.in(0, 1) == 1;
  const std::int64_t total = std::accumulate(
      input.unit_bytes.begin(), input.unit_bytes.end(), std::int64_t{0});
  const std::int64_t common = random.in(0, total);
  for (std::size_t visit = 0; visit < input.visits.size(); ++visit) {
    input.budget_bytes[visit] = std::max(
        size_of(input, input.visits[visit]),
        by_visit ? random.in(0, total) : common);
  }
  for (std::size_t unit = 0; options.carried && unit < input.carried.size();
       ++unit) {
    input.carried[unit] = random.in(0, 1) == 1;
  }
  return input;
}

std::int64_t least_gathered_bytes(const ScheduleInput& input) {
  return BruteForce(input).least();
}

std::string broken_promise(
    const ScheduleInput& input, const UnitSchedule& schedule) {
  return Player(input, schedule).play();
}

}  // namespace sherd::plan
