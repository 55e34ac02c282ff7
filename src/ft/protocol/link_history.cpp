// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/link_history.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

namespace sherd::ft {
namespace {

constexpr int kBad = 2;
// Made-up links must not fill the memory.
constexpr std::size_t kLinksMax = 8192;
// With fewer measured links nobody knows what speed is usual.
constexpr std::size_t kLinksMin = 3;

std::uint64_t median_of(const SpeedOfLink& speeds) {
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
std::set<ReplicaId> slow_replicas(
    const SpeedOfLink& speeds, std::uint64_t median) {
  std::map<ReplicaId, std::vector<std::uint64_t>> speeds_of;
  for (const auto& [ends, speed] : speeds) {
    speeds_of[ends.first].push_back(speed);
    speeds_of[ends.second].push_back(speed);
  }
  std::set<ReplicaId> slow;
  for (const auto& [replica, its] : speeds_of) {
    if (its.size() > 1 && is_slow(std::ranges::max(its), median)) {
      slow.insert(replica);
    }
  }
  return slow;
}

bool is_bad(const LinkHistory::Link& link) {
  return link.suspected.epochs >= kBad;
}
bool is_found_slow(const LinkHistory::Link& link) {
  return link.slow_steps >= LinkHistory::kStepsUntilSlow;
}

}  // namespace

bool LinkHistory::has_room(const LinkEnds& ends) const {
  return all_.size() < kLinksMax || all_.contains(ends);
}

bool LinkHistory::suspect(ReplicaId one, ReplicaId other, const Epoch& epoch) {
  const LinkEnds ends = std::minmax(one, other);
  if (one == other || !has_room(ends)) {
    return false;
  }
  auto& suspected = all_[ends].suspected;
  if (suspected.epochs > 0 && epoch <= suspected.last) {
    return false;
  }
  suspected.last = epoch;
  suspected.epochs = std::min(suspected.epochs + 1, kBad + 1);
  return suspected.epochs == kBad;
}

bool LinkHistory::fail(ReplicaId one, ReplicaId other, const Epoch& epoch) {
  const bool was_bad = quality(one, other) == LinkQuality::kBad;
  suspect(one, other, epoch);
  const auto found = all_.find(std::minmax(one, other));
  if (found == all_.end()) {
    return false;
  }
  auto& epochs = found->second.suspected.epochs;
  epochs = std::max(epochs, kBad);
  return !was_bad;
}

SpeedOfLink LinkHistory::judge(const SpeedOfLink& speeds) {
  if (speeds.size() < kLinksMin) {
    return {};
  }
  const auto median = median_of(speeds);
  const auto slow = slow_replicas(speeds, median);
  SpeedOfLink found;
  for (const auto& [ends, speed] : speeds) {
    if (is_fast(speed, median) || slow.contains(ends.first) ||
        slow.contains(ends.second)) {
      const auto known = all_.find(ends);
      if (known != all_.end() && !is_found_slow(known->second)) {
        known->second.slow_steps = 0;
        if (known->second == Link{}) {
          all_.erase(known);
        }
      }
      continue;
    }
    if (!is_slow(speed, median) || !has_room(ends)) {
      continue;
    }
    auto& steps = all_[ends].slow_steps;
    if (steps < kStepsUntilSlow && ++steps == kStepsUntilSlow) {
      found[ends] = speed;
    }
  }
  return found;
}

void LinkHistory::forget(ReplicaId replica) {
  std::erase_if(all_, [&](const auto& one) {
    return one.first.first == replica || one.first.second == replica;
  });
}

LinkQuality LinkHistory::quality(ReplicaId one, ReplicaId other) const {
  const auto found = all_.find(std::minmax(one, other));
  if (found == all_.end()) {
    return LinkQuality::kGood;
  }
  return is_bad(found->second)       ? LinkQuality::kBad
      : is_found_slow(found->second) ? LinkQuality::kSlow
                                     : LinkQuality::kGood;
}

bool LinkHistory::any_slow() const {
  return std::ranges::any_of(
      all_, [](const auto& one) { return is_found_slow(one.second); });
}

}  // namespace sherd::ft
