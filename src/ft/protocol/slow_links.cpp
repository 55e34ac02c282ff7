// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/slow_links.h"

#include <algorithm>
#include <cstddef>

namespace sherd::ft {
namespace {

using Ends = std::pair<ReplicaId, ReplicaId>;
using Speeds = std::map<Ends, std::uint64_t>;

// Made-up links must not fill the memory.
constexpr std::size_t kSlowLinksMax = 4096;
// With fewer measured links nobody knows what speed is usual.
constexpr std::size_t kLinksMin = 3;

Speeds lower_speeds(const std::vector<MeasuredLink>& links) {
  Speeds speeds;
  for (const auto& link : links) {
    if (link.one != link.other) {
      auto& speed =
          speeds.try_emplace(std::minmax(link.one, link.other), UINT64_MAX)
              .first->second;
      speed = std::min(speed, link.bytes_per_s);
    }
  }
  return speeds;
}

std::uint64_t median_of(const Speeds& speeds) {
  std::vector<std::uint64_t> all;
  for (const auto& [ends, speed] : speeds) {
    all.push_back(speed);
  }
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

bool is_slow(std::uint64_t speed, std::uint64_t median) {
  return speed <= median / 2;
}
// A link that is neither fast nor slow changes nothing.
bool is_fast(std::uint64_t speed, std::uint64_t median) {
  return speed > median / 4 * 3;
}

// The replicas whose links, at least two, are all slow.
std::map<ReplicaId, bool> slow_replicas(
    const Speeds& speeds, std::uint64_t median) {
  struct Count {
    int links = 0;
    int slow = 0;
  };
  std::map<ReplicaId, Count> counts;
  for (const auto& [ends, speed] : speeds) {
    for (const auto end : {ends.first, ends.second}) {
      ++counts[end].links;
      counts[end].slow += is_slow(speed, median) ? 1 : 0;
    }
  }
  std::map<ReplicaId, bool> slow;
  for (const auto& [replica, count] : counts) {
    slow[replica] = count.links > 1 && count.slow == count.links;
  }
  return slow;
}

}  // namespace

std::vector<MeasuredLink> SlowLinks::judge(
    const std::vector<MeasuredLink>& links) {
  const auto speeds = lower_speeds(links);
  if (speeds.size() < kLinksMin) {
    return {};
  }
  const auto median = median_of(speeds);
  const auto replicas = slow_replicas(speeds, median);
  std::vector<MeasuredLink> found;
  for (const auto& [ends, speed] : speeds) {
    const auto& [one, other] = ends;
    if (is_fast(speed, median) || replicas.at(one) || replicas.at(other)) {
      if (!slow(one, other)) {
        all_.erase(ends);
      }
      continue;
    }
    if (!is_slow(speed, median) ||
        (all_.size() >= kSlowLinksMax && !all_.contains(ends))) {
      continue;
    }
    auto& steps = all_[ends];
    if (steps < kStepsUntilSlow && ++steps == kStepsUntilSlow) {
      found.push_back({one, other, speed});
    }
  }
  return found;
}

void SlowLinks::forget(ReplicaId replica) {
  std::erase_if(all_, [&](const auto& one) {
    return one.first.first == replica || one.first.second == replica;
  });
}

bool SlowLinks::slow(ReplicaId one, ReplicaId other) const {
  const auto found = all_.find(std::minmax(one, other));
  return found != all_.end() && found->second >= kStepsUntilSlow;
}

bool SlowLinks::any() const {
  return std::ranges::any_of(
      all_, [](const auto& one) { return one.second >= kStepsUntilSlow; });
}

}  // namespace sherd::ft
