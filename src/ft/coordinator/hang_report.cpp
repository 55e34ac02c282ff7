// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/hang_report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace sherd::ft {
namespace {

constexpr std::size_t kNamedMax = 8;
constexpr std::size_t kUnitCharsMax = 120;

std::string place_text(const TrainingProgress& progress) {
  const auto& place = progress.place;
  if (!place || place->slices == 0) {
    return {};
  }
  return str(
      " in bucket ", place->bucket,
      place->unit.empty() ? ""
                          : " (" + place->unit.substr(0, kUnitCharsMax) + ")",
      ", ", place->slices_done, " of ", place->slices, " slices done");
}

// "its bytes", "the bytes of replica 0".
std::string wanted(
    const TrainingProgress& progress, std::optional<ReplicaId> culprit) {
  const char* what = progress.to_read ? "reading" : "bytes";
  return progress.waits_for == culprit
      ? str("its ", what)
      : str("the ", what, " of replica ", *progress.waits_for);
}

std::string does(const RankActivity& rank, std::optional<ReplicaId> culprit) {
  const auto& progress = rank.progress;
  if (progress.missed_heartbeats >= kSilentAfterHeartbeats) {
    return str(
        "has an agent that has said nothing for ", tenths(silence_of(progress)),
        ", it was ", text_of(progress.activity), " before");
  }
  if (progress.waits_for) {
    return str("waits for ", wanted(progress, culprit), place_text(progress));
  }
  return str(
      "has been ", text_of(progress.activity), " for ", tenths(rank.standing),
      place_text(progress));
}

// What can be told of one that waits.
std::vector<std::string> waits_of(
    const ReplicaActivity& one, ReplicaId culprit, bool directly) {
  std::vector<std::string> said;
  for (std::size_t rank = 0; rank < one.ranks.size(); ++rank) {
    const auto& progress = one.ranks[rank].progress;
    if (progress.waits_for &&
        progress.missed_heartbeats < kSilentAfterHeartbeats &&
        (progress.waits_for == culprit) == directly) {
      said.push_back(
          str("replica ", one.replica, " rank ", rank, " ",
              does(one.ranks[rank], culprit)));
    }
  }
  if (one.ranks.empty() && one.waits_for &&
      (one.waits_for == culprit) == directly) {
    said.push_back(
        directly ? str("replica ", one.replica, " waits for it")
                 : str("replica ", one.replica, " waits for replica ",
                       *one.waits_for));
  }
  return said;
}

std::string text_of_culprit(const ReplicaActivity& culprit) {
  const auto behind = ranks_behind(culprit);
  if (behind.empty()) {
    return {};
  }
  const auto first = does(culprit.ranks[behind.front()], std::nullopt);
  if (behind.size() == 1) {
    return str("rank ", behind.front(), " ", first);
  }
  // They need not do the same.
  return str(
      behind.size() == culprit.ranks.size() ? "none of its ranks is behind: "
                                            : "several are behind: ",
      "rank ", behind.front(), " ", first);
}

// Frames of this rank that `from` has sent and `to` has not got.
std::uint64_t missing(
    const ReplicaActivity& from, const ReplicaActivity& to, std::size_t rank) {
  if (rank >= to.ranks.size() || !to.ranks[rank].progress.place) {
    return 0;
  }
  const auto& sender = *from.ranks[rank].progress.place;
  const auto& receiver = *to.ranks[rank].progress.place;
  const bool is_link = sender.epoch == receiver.epoch &&
      sender.next == to.replica && receiver.previous == from.replica;
  return is_link && sender.frames_out > receiver.frames_in
      ? sender.frames_out - receiver.frames_in
      : 0;
}

}  // namespace

std::string text_of(Activity activity) {
  switch (activity) {
    case Activity::kIdle:
      return "idle";
    case Activity::kComputing:
      return "computing";
    case Activity::kReducing:
      return "reducing";
    case Activity::kWaiting:
      return "waiting for a decision";
    case Activity::kApplying:
      return "applying";
    case Activity::kFetching:
      return "fetching";
  }
  return "?";
}

std::string tenths(Duration duration) {
  const auto tenths = duration / std::chrono::milliseconds(100);
  return str(tenths / 10, ".", tenths % 10, " s");
}

std::string text_of(const RankActivity& rank) {
  return does(rank, std::nullopt);
}

std::string text_of(const DeadLink& link) {
  return str(
      "the link from replica ", link.from, " to replica ", link.to,
      " is dead: ", link.frames, link.frames == 1 ? " frame" : " frames",
      " of rank ", link.rank, " went and ", link.frames == 1 ? "has" : "have",
      " not come");
}

std::vector<BrokenLink> broken_links_of(const std::vector<DeadLink>& links) {
  std::vector<BrokenLink> broken;
  for (const auto& link : links) {
    broken.push_back({.accused = link.to, .noticed_by = link.from});
  }
  return broken;
}

std::vector<std::size_t> ranks_behind(const ReplicaActivity& replica) {
  const auto& ranks = replica.ranks;
  std::vector<std::size_t> behind;
  // An agent that says nothing is behind whatever it said last.
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].progress.missed_heartbeats >= kSilentAfterHeartbeats) {
      behind.push_back(rank);
    }
  }
  if (!behind.empty() || ranks.empty()) {
    return behind;
  }
  const auto least = std::min_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) {
        return a.progress.serial < b.progress.serial;
      });
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].progress.serial == least->progress.serial) {
      behind.push_back(rank);
    }
  }
  return behind;
}

std::string hang_report(
    const ReplicaActivity& culprit,
    const std::vector<ReplicaActivity>& others) {
  std::vector<std::string> all;
  if (auto its = text_of_culprit(culprit); !its.empty()) {
    all.push_back(std::move(its));
  }
  std::size_t waiting = 0;
  for (const bool directly : {true, false}) {
    for (const auto& one : others) {
      if (one.replica == culprit.replica) {
        continue;
      }
      for (auto& said : waits_of(one, culprit.replica, directly)) {
        if (++waiting <= kNamedMax) {
          all.push_back(std::move(said));
        }
      }
    }
  }
  if (waiting > kNamedMax) {
    all.push_back(str(waiting - kNamedMax, " more ranks wait"));
  }
  std::string report;
  for (const auto& one : all) {
    report += (report.empty() ? "" : "; ") + one;
  }
  return report;
}

std::vector<DeadLink> dead_links(const std::vector<ReplicaActivity>& replicas) {
  std::vector<DeadLink> links;
  std::map<ReplicaId, const ReplicaActivity*> by_name;
  for (const auto& one : replicas) {
    by_name[one.replica] = &one;
  }
  for (const auto& from : replicas) {
    for (std::size_t rank = 0; rank < from.ranks.size(); ++rank) {
      const auto& place = from.ranks[rank].progress.place;
      const auto to = by_name.find(place ? place->next : from.replica);
      const auto frames =
          place && to != by_name.end() ? missing(from, *to->second, rank) : 0;
      if (frames > 0) {
        links.push_back({place->epoch, from.replica, to->first, rank, frames});
        break;
      }
    }
  }
  return links;
}

}  // namespace sherd::ft
