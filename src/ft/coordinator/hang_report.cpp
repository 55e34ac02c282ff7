// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/hang_report.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
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
  if (const auto silent = silence_of(progress); silent > Duration(0)) {
    return str(
        "has an agent that has said nothing for ", tenths(silent), ", it was ",
        text_of(progress.activity), " before");
  }
  if (progress.waits_for) {
    return str("waits for ", wanted(progress, culprit), place_text(progress));
  }
  return str(
      "has been ", text_of(progress.activity), " for ", tenths(rank.standing),
      place_text(progress));
}

// Sentences about ranks that wait: the first few are named, the others counted.
struct WaitingRanks {
  std::vector<std::string> named;
  std::size_t count = 0;

  template <typename Sentence>
  void add(const Sentence& sentence) {
    if (++count <= kNamedMax) {
      named.push_back(sentence());
    }
  }
};

void add_waits_of(
    const ReplicaActivity& one,
    ReplicaId culprit,
    bool directly,
    WaitingRanks& waiting) {
  for (const auto& rank : one.ranks) {
    const auto& progress = rank.progress;
    if (progress.waits_for && silence_of(progress) == Duration(0) &&
        (progress.waits_for == culprit) == directly) {
      waiting.add([&] {
        return str(
            "replica ", one.replica, " rank ", progress.rank, " ",
            does(rank, culprit));
      });
    }
  }
  if (one.ranks.empty() && one.waits_for &&
      (one.waits_for == culprit) == directly) {
    waiting.add([&] {
      return directly
          ? str("replica ", one.replica, " waits for it")
          : str("replica ", one.replica, " waits for replica ", *one.waits_for);
    });
  }
}

std::string text_of_culprit(const ReplicaActivity& culprit) {
  const auto behind = ranks_behind(culprit);
  if (behind.empty()) {
    return {};
  }
  const auto& least = culprit.ranks[behind.front()];
  const auto first =
      str("rank ", least.progress.rank, " ", does(least, std::nullopt));
  if (behind.size() == 1) {
    return first;
  }
  // The ranks need not do the same.
  return str(
      behind.size() == culprit.ranks.size() ? "none of its ranks is behind: "
                                            : "several are behind: ",
      first);
}

// How many frames this rank of `from` has sent on a link that its counterpart in `to` has not
// received.
std::uint32_t missing(
    ReplicaId from,
    const TrainingProgress& rank,
    const RingLink& link,
    const ReplicaActivity& to) {
  const auto counterpart = std::ranges::find_if(
      to.ranks,
      [&](const RankActivity& one) { return one.progress.rank == rank.rank; });
  if (counterpart == to.ranks.end() || !counterpart->progress.place) {
    return 0;
  }
  const auto& receiver = *counterpart->progress.place;
  const auto back = std::ranges::find(receiver.links, from, &RingLink::peer);
  if (rank.place->epoch != receiver.epoch || back == receiver.links.end()) {
    return 0;
  }
  // The two counts are reported at different moments: the count of received frames may be the newer
  // one.
  constexpr std::uint32_t kHalf = 1U << 31U;
  const std::uint32_t frames = link.frames_out - back->frames_in;
  return frames < kHalf ? frames : 0;
}

void add_dead_links(
    const ReplicaActivity& from,
    const std::map<ReplicaId, const ReplicaActivity*>& by_name,
    std::vector<DeadLink>& links) {
  std::set<ReplicaId> found;
  for (const auto& rank : from.ranks) {
    const auto& place = rank.progress.place;
    for (const auto& link : place ? place->links : std::vector<RingLink>()) {
      const auto to = by_name.find(link.peer);
      const auto frames = to == by_name.end()
          ? 0
          : missing(from.replica, rank.progress, link, *to->second);
      if (frames > 0 && found.insert(link.peer).second) {
        links.push_back(
            {place->epoch, from.replica, link.peer, rank.progress.rank,
             frames});
      }
    }
  }
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
    case Activity::kOtherWork:
      return "doing other work";
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
  // A rank whose agent is silent is behind, whatever it reported last.
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (silence_of(ranks[rank].progress) > Duration(0)) {
      behind.push_back(rank);
    }
  }
  if (!behind.empty() || ranks.empty()) {
    return behind;
  }
  const auto least = std::ranges::min_element(
      ranks, {}, [](const RankActivity& one) { return one.progress.serial; });
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
  WaitingRanks waiting;
  for (const bool directly : {true, false}) {
    for (const auto& one : others) {
      if (one.replica != culprit.replica) {
        add_waits_of(one, culprit.replica, directly, waiting);
      }
    }
  }
  std::ranges::move(waiting.named, std::back_inserter(all));
  if (waiting.count > kNamedMax) {
    all.push_back(str(waiting.count - kNamedMax, " more ranks wait"));
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
    add_dead_links(from, by_name, links);
  }
  return links;
}

}  // namespace sherd::ft
