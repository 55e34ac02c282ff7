// SPDX-License-Identifier: Apache-2.0
#include "plan/placement.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include "base/check.h"
#include "plan/arithmetic.h"

namespace sherd::plan {
namespace {

constexpr int kTriesMax = 8;

constexpr int kNever = -1;

// Of a unit that is there at the visits begin, ..., end - 1; those from `visits`
// on are in the next step.
struct SlotLifetime {
  int begin = 0;
  int end = 0;
  std::int64_t bytes = 0;  // Rounded up to the alignment.

  std::int64_t length() const { return end - begin; }
};

// The stays of a schedule, and where the schedule names them.
struct SlotLifetimes {
  std::vector<SlotLifetime> all;
  std::vector<std::size_t> initial;
  std::vector<std::vector<std::size_t>> unshard;
};

std::vector<int> first_reshards(
    const ScheduleInput& input, const UnitSchedule& schedule) {
  std::vector<int> first(input.unit_bytes.size(), kNever);
  for (std::size_t visit = 0; visit < schedule.before.size(); ++visit) {
    for (const UnitId unit : schedule.before[visit].reshard) {
      int& place = first[static_cast<std::size_t>(unit)];
      place = place == kNever ? static_cast<int>(visit) : place;
    }
  }
  return first;
}

// Backwards, so that the end of each stay is known when its begin is met. The
// last stay of a unit in `initial` goes on into the next step.
SlotLifetimes lifetimes_of(const ScheduleInput& input, const UnitSchedule& schedule) {
  const int visits = static_cast<int>(input.visits.size());
  const std::vector<int> first = first_reshards(input, schedule);
  const auto bytes_of = [&](std::size_t unit) {
    return round_up(input.unit_bytes[unit], kPlaceAlignment);
  };
  std::vector<int> end(input.unit_bytes.size(), visits);
  for (const UnitId unit : schedule.initial) {
    const std::size_t u = static_cast<std::size_t>(unit);
    end[u] = visits + std::max(first[u], 0);
  }
  SlotLifetimes stays;
  stays.unshard.resize(schedule.before.size());
  std::vector<std::size_t> last(input.unit_bytes.size());
  for (int visit = visits - 1; visit >= 0; --visit) {
    const std::size_t v = static_cast<std::size_t>(visit);
    for (const UnitId unit : schedule.before[v].unshard) {
      const std::size_t u = static_cast<std::size_t>(unit);
      if (end[u] >= visits) {
        last[u] = stays.all.size();
      }
      stays.unshard[v].push_back(stays.all.size());
      stays.all.push_back({visit, end[u], bytes_of(u)});
    }
    for (const UnitId unit : schedule.before[v].reshard) {
      end[static_cast<std::size_t>(unit)] = visit;
    }
  }
  for (const UnitId unit : schedule.initial) {
    const std::size_t u = static_cast<std::size_t>(unit);
    if (first[u] == kNever) {
      last[u] = stays.all.size();
      stays.all.push_back({0, visits, bytes_of(u)});
    }
    stays.initial.push_back(last[u]);
  }
  return stays;
}

// On the circle of visits.
bool meet(const SlotLifetime& a, const SlotLifetime& b, int visits) {
  const auto overlap = [](const SlotLifetime& x, const SlotLifetime& y, int shift) {
    return x.begin < y.end + shift && y.begin + shift < x.end;
  };
  return overlap(a, b, 0) || overlap(a, b, visits) || overlap(a, b, -visits);
}

struct Packing {
  std::vector<std::int64_t> offsets;  // By stay.
  std::int64_t arena_bytes = 0;
};

// The lowest place beside those taken, given by begin.
std::int64_t lowest_hole(
    const std::vector<std::pair<std::int64_t, std::int64_t>>& taken,
    std::int64_t bytes) {
  std::int64_t offset = 0;
  for (const auto& [begin, end] : taken) {
    if (begin - offset >= bytes) {
      break;
    }
    offset = std::max(offset, end);
  }
  return offset;
}

Packing pack(
    const std::vector<SlotLifetime>& stays,
    const std::vector<std::size_t>& order,
    int visits) {
  Packing packing{.offsets = std::vector<std::int64_t>(stays.size())};
  std::vector<std::size_t> placed;
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (const std::size_t s : order) {
    taken.clear();
    for (const std::size_t other : placed) {
      if (meet(stays[s], stays[other], visits)) {
        taken.emplace_back(
            packing.offsets[other],
            packing.offsets[other] + stays[other].bytes);
      }
    }
    std::sort(taken.begin(), taken.end());
    packing.offsets[s] = lowest_hole(taken, stays[s].bytes);
    packing.arena_bytes =
        std::max(packing.arena_bytes, packing.offsets[s] + stays[s].bytes);
    placed.push_back(s);
  }
  return packing;
}

// What no packing can do with less than: the most bytes at one visit.
std::int64_t packed_bytes_min(const std::vector<SlotLifetime>& stays, int visits) {
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(visits));
  for (const SlotLifetime& stay : stays) {
    for (int visit = stay.begin; visit < stay.end; ++visit) {
      bytes[static_cast<std::size_t>(visit % visits)] += stay.bytes;
    }
  }
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

// The best of a few orders. By begin, equal units lose nothing; long or large
// ones first leave fewer holes among unequal ones.
Packing pack_best(const std::vector<SlotLifetime>& stays, int visits) {
  using Rank = std::array<std::int64_t, 3>;  // The smallest goes first.
  const std::array<std::function<Rank(const SlotLifetime&)>, 4> ranks = {
      [&](const SlotLifetime& s) {
        return Rank{s.end > visits ? 0 : 1, s.begin, -s.bytes};
      },
      [](const SlotLifetime& s) { return Rank{-s.length(), -s.bytes, s.begin}; },
      [](const SlotLifetime& s) { return Rank{-s.bytes, s.begin, 0}; },
      [](const SlotLifetime& s) { return Rank{-s.bytes, -s.length(), s.begin}; }};
  const std::int64_t least = packed_bytes_min(stays, visits);
  Packing best{
      .offsets = {}, .arena_bytes = std::numeric_limits<std::int64_t>::max()};
  for (const auto& rank : ranks) {
    std::vector<std::size_t> order(stays.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(rank(stays[a]), a) < std::pair(rank(stays[b]), b);
    });
    Packing packing = pack(stays, order, visits);
    if (packing.arena_bytes < best.arena_bytes) {
      best = std::move(packing);
    }
    if (best.arena_bytes == least) {
      break;
    }
  }
  return best;
}

std::int64_t visit_bytes_max(const ScheduleInput& input) {
  std::int64_t most = 0;
  for (const std::vector<UnitId>& set : input.visits) {
    std::int64_t bytes = 0;
    for (const UnitId unit : set) {
      bytes += input.unit_bytes[static_cast<std::size_t>(unit)];
    }
    most = std::max(most, bytes);
  }
  return most;
}

std::int64_t budget_bytes_max(const ScheduleInput& input) {
  const std::vector<std::int64_t>& budget = input.budget_bytes;
  return budget.empty() ? 0 : *std::max_element(budget.begin(), budget.end());
}

// With no visit's budget above the cap.
Result<PlacedSchedule> plan_with_cap(ScheduleInput input, std::int64_t cap) {
  for (std::int64_t& bytes : input.budget_bytes) {
    bytes = std::min(bytes, cap);
  }
  Result<UnitSchedule> schedule = make_unit_schedule(input);
  if (!schedule.ok()) {
    return schedule.status();
  }
  PlacedSchedule placed{
      .input = std::move(input),
      .schedule = std::move(schedule).value(),
      .placement = {}};
  placed.placement = place_units(placed.input, placed.schedule);
  return placed;
}

// The one that gathers less; of equals the first.
std::optional<PlacedSchedule> better(
    std::optional<PlacedSchedule> best, PlacedSchedule other) {
  const bool keep = best &&
      best->schedule.report.gathered_bytes <=
          other.schedule.report.gathered_bytes;
  return keep ? std::move(best) : std::move(other);
}

}  // namespace

Placement place_units(
    const ScheduleInput& input, const UnitSchedule& schedule) {
  const SlotLifetimes stays = lifetimes_of(input, schedule);
  const Packing packing =
      pack_best(stays.all, static_cast<int>(input.visits.size()));
  const auto offsets_of = [&](const std::vector<std::size_t>& list) {
    std::vector<std::int64_t> offsets;
    offsets.reserve(list.size());
    for (const std::size_t stay : list) {
      offsets.push_back(packing.offsets[stay]);
    }
    return offsets;
  };
  Placement placement;
  placement.initial = offsets_of(stays.initial);
  for (const std::vector<std::size_t>& list : stays.unshard) {
    placement.unshard.push_back(offsets_of(list));
  }
  placement.arena_bytes = packing.arena_bytes;
  placement.lost_bytes =
      packing.arena_bytes - schedule.report.resident_bytes_peak;
  return placement;
}

// The first try is the budget itself. After a failure the cap falls by what was
// too much, then by twice as much each time, at last to what the visits need; once
// one fits, the tries left bisect towards the last one that did not.
Result<PlacedSchedule> make_placed_schedule(const ScheduleInput& input) {
  const std::int64_t limit = budget_bytes_max(input);
  const std::int64_t floor = visit_bytes_max(input);
  std::int64_t cap = limit;
  std::int64_t cap_too_large = limit;
  std::int64_t cap_that_fits = 0;
  std::int64_t arena_bytes_min = std::numeric_limits<std::int64_t>::max();
  std::int64_t lower_bound_bytes = 0;
  std::optional<PlacedSchedule> best;
  for (int left = kTriesMax - 1; left >= 0; --left) {
    Result<PlacedSchedule> result = plan_with_cap(input, cap);
    if (!result.ok()) {
      return result.status();
    }
    PlacedSchedule placed = std::move(result).value();
    if (cap == limit) {
      lower_bound_bytes = placed.schedule.report.lower_bound_bytes;
    }
    const std::int64_t arena_bytes = placed.placement.arena_bytes;
    arena_bytes_min = std::min(arena_bytes_min, arena_bytes);
    if (arena_bytes > limit) {
      cap_too_large = cap;
      cap -= std::max(arena_bytes - limit, limit - cap);
      cap = left == 1 ? floor : std::max(floor, cap);
    } else {
      cap_that_fits = cap;
      best = better(std::move(best), std::move(placed));
    }
    if (best) {
      cap = cap_that_fits + (cap_too_large - cap_that_fits) / 2;
      if (cap == cap_that_fits) {
        break;
      }
    }
  }
  if (best) {
    // That the places cost traffic must show: the bound is of the budget given.
    best->schedule.report.lower_bound_bytes = lower_bound_bytes;
    return std::move(*best);
  }
  return Status{
      ErrorCode::kInvalidArgument,
      str("[plan] the units' places need ", arena_bytes_min,
          " bytes, alignment and holes included, but the budget is ", limit,
          " bytes; raise it to at least ", arena_bytes_min)};
}

}  // namespace sherd::plan
