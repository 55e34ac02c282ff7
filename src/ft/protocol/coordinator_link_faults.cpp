// SPDX-License-Identifier: Apache-2.0
//
// Which links the coordinator suspects or finds slow, whom it leaves out because of them, and how
// it orders members so that they avoid these links.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "ft/protocol/coordinator.h"

namespace sherd::ft {

CoordinatorDecisions Coordinator::links_fail(
    const std::vector<BrokenLink>& links,
    const std::string& reason,
    Instant now) {
  now_ = now;
  if (stage_ == EpochStage::kRunning) {
    for (const auto& link : links) {
      accuse(link, history_.epoch);
    }
    if (!broken_links_.empty()) {
      epoch_ended_because_ = reason;
    }
    advance();
  }
  return std::exchange(decisions_, {});
}

// The first accusation of a link is the right one: a member that connects knows more than the one
// it connects to, and reports earlier. If the replica is lost, nothing needs to be recorded.
void Coordinator::accuse(const BrokenLink& link, const Epoch& epoch) {
  const auto is_there = [&](ReplicaId replica) {
    const auto found = replicas_.find(replica);
    return found != replicas_.end() && found->second.connected;
  };
  const auto ends = std::minmax(link.accused, link.noticed_by);
  if (!is_there(link.accused) || !is_there(link.noticed_by) ||
      std::ranges::any_of(broken_links_, [&](const BrokenLink& one) {
        return std::minmax(one.accused, one.noticed_by) == ends;
      })) {
    return;
  }
  broken_links_.push_back(link);
  link_history_.fail(link.accused, link.noticed_by, epoch);
}

void Coordinator::forget_broken_links(ReplicaId replica) {
  std::erase_if(broken_links_, [&](const BrokenLink& one) {
    return one.accused == replica || one.noticed_by == replica;
  });
}

// The members that have not joined the epoch yet.
std::vector<ReplicaId> Coordinator::unjoined_members(
    const std::vector<Member>& members, const Epoch& epoch) const {
  std::vector<ReplicaId> late;
  for (const auto& member : members) {
    if (replicas_.at(member.replica).report.joined != epoch) {
      late.push_back(member.replica);
    }
  }
  return late;
}

// The wait doubles each time, up to a short one, since an attempt costs the others nothing. Replicas
// that failed together do not come back together.
Duration Coordinator::rejoin_wait(ReplicaId replica) const {
  constexpr int kDoublingsMax = 16;
  constexpr Duration kWaitMax = std::chrono::seconds(4);
  const auto times =
      std::min(replicas_.at(replica).failed_joins, kDoublingsMax);
  const auto wait = std::min(options_.backoff * (1 << times), kWaitMax);
  const auto drawn = mix64(mix64(replica) ^ number_) % 256;
  return wait - wait / 1024 * static_cast<Duration::rep>(drawn);
}

void Coordinator::postpone(
    ReplicaId replica, Duration wait, const std::string& why) {
  constexpr int kCountedMax = 16;
  auto& known = replicas_.at(replica);
  keep_out(known, now_ + wait);
  if (known.failed_joins == 0) {
    notice("left_out", name_of(replica), why);
  }
  known.failed_joins = std::min(known.failed_joins + 1, kCountedMax);
}

// The others train. The first attempt to come back happens at once, since it costs them nothing.
void Coordinator::leave_out_culprits() {
  for (const auto culprit : culprits_of(broken_links_)) {
    postpone(culprit, Duration(0), why_left_out(culprit, broken_links_));
  }
  broken_links_.clear();
}

// ---- links that are slow ----

// Runs once a step, with what members have measured in this epoch. If both ends of a link have
// measured it, the lower speed counts.
void Coordinator::judge_links() {
  constexpr double kMega = 1e6;
  SpeedOfLink speeds;
  for (const auto& member : history_.members) {
    for (const auto& link : replicas_.at(member.replica).report.link_speeds) {
      if (is_member(link.peer) && link.peer != member.replica) {
        auto& speed =
            speeds
                .try_emplace(std::minmax(member.replica, link.peer), UINT64_MAX)
                .first->second;
        speed = std::min(speed, link.bytes_per_s);
      }
    }
  }
  for (const auto& [ends, speed] : link_history_.judge(speeds)) {
    notice(
        "slow_links", name_of(ends.first),
        str("its link with ", name_of(ends.second), " carries ",
            static_cast<std::int64_t>(static_cast<double>(speed) / kMega),
            " MB/s, half as much as most or less: orders of members avoid "
            "it"));
  }
}

LinkQualityOf Coordinator::link_quality() const {
  return [this](ReplicaId one, ReplicaId other) {
    return link_history_.quality(one, other);
  };
}

std::vector<Member> Coordinator::in_order(std::vector<Member> members) const {
  return link_history_.all().empty()
      ? members
      : order_of(std::move(members), link_quality());
}

}  // namespace sherd::ft
