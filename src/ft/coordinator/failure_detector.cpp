// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/failure_detector.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace sherd::ft {
namespace {

// The weight of the last phase in the moving average.
constexpr double kLastWeight = 0.2;
// How many usual lengths a phase may take before it is slow, and before it hangs.
constexpr double kSoftFactor = 3;
constexpr double kHardFactor = 10;
// The computations that warm up.
constexpr int kFirstSteps = 5;
// For how many findings of a tick all replicas are searched for those that wait. If there are more
// at once, something else is to blame.
constexpr int kExplainedMax = 16;

// A replica that waits for the coordinator, or for nothing, has no deadline.
bool busy(const TrainingProgress& progress) {
  return progress.activity != Activity::kIdle &&
      progress.activity != Activity::kWaiting;
}

std::size_t index_of(Activity activity) {
  return static_cast<std::size_t>(activity);
}

Duration scaled(double factor, double usual_s, Duration floor) {
  const auto limit = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(factor * usual_s));
  return std::max(limit, floor);
}

}  // namespace

// Phases shorter than the time between two reports are not seen, but a completed step shows that
// they have ended.
void FailureDetector::received(const Report& report, Instant now) {
  const auto& progress = report.progress;
  const Life life{report.replica, report.incarnation};
  const auto [found, is_new] = watched_.try_emplace(life);
  MonitoredReplica& watched = found->second;
  watched.heard_at = now;
  // A replica of many ranks may report other ranks each time.
  const auto before = std::exchange(watched.ranks, {});
  for (const auto& one : report.ranks) {
    const auto known =
        std::ranges::find_if(before, [&](const MonitoredRank& other) {
          return other.progress.rank == one.rank;
        });
    const bool stands =
        known != before.end() && !has_moved(known->progress, one);
    watched.ranks.push_back({one, stands ? known->since : now});
  }
  if (is_new) {
    watched.progress = progress;
    watched.since = now;
    watched.held = report.held;
    newest_[report.replica] = life;
    return;
  }
  if (report.held != watched.held) {
    watched.since = now;  // Regardless of what its ranks have reported last.
  }
  if (report.held && watched.held &&
      report.held->step == watched.held->step + 1 &&
      watched.progress.activity != Activity::kFetching) {
    ++watched.ended[index_of(Activity::kReducing)];
    ++watched.ended[index_of(Activity::kApplying)];
  }
  watched.held = report.held;
  if (!has_moved(watched.progress, progress)) {
    watched.progress = progress;
    return;
  }
  end_phase(watched, progress.activity, now);
  watched.progress = progress;
  watched.since = now;
  watched.liveness = {};
}

void FailureDetector::committed(const std::vector<Member>& participants) {
  for (const auto& member : participants) {
    const auto found = watched_.find({member.replica, member.incarnation});
    if (found != watched_.end() && !member.samples.empty()) {
      ++found->second.steps_computed;
    }
  }
}

// A phase that took longer than its limit counts as one that has reached the limit. If all of it
// counted, one hang would hide the next ones; if nothing did, phases that take longer from some
// step on, for whatever reason, would be found to hang forever.
void FailureDetector::end_phase(
    MonitoredReplica& watched, Activity next, Instant now) {
  const auto activity = index_of(watched.progress.activity);
  SHERD_ASSERT(activity < kActivities, "an activity that nobody decodes");
  const Life* other = life_of(watched.progress.waits_for);
  if (other == nullptr || !watched_.at(*other).liveness.hung) {
    auto& usual = watched.usual_s[activity];
    const double last_s =
        seconds(std::min(now - watched.since, hard_limit(watched)));
    usual = usual ? *usual + kLastWeight * (last_s - *usual) : last_s;
  }
  // A serial that changes shows progress within the phase.
  watched.ended[activity] += next != watched.progress.activity ? 1 : 0;
}

void FailureDetector::ended(ReplicaId replica, Incarnation incarnation) {
  const Life life{replica, incarnation};
  watched_.erase(life);
  const auto newest = newest_.find(replica);
  if (newest == newest_.end() || newest->second != life) {
    return;
  }
  const auto other = watched_.lower_bound({replica, 0});
  if (other != watched_.end() && other->first.first == replica) {
    newest->second = other->first;
  } else {
    newest_.erase(newest);
  }
}

void FailureDetector::find_hang_again(
    ReplicaId replica, Incarnation incarnation) {
  const auto found = watched_.find({replica, incarnation});
  if (found != watched_.end()) {
    found->second.liveness.hung = false;
  }
}

void FailureDetector::find_hangs_again() {
  for (auto& [life, watched] : watched_) {
    watched.liveness.hung = false;
  }
}

FailureDetector::Liveness FailureDetector::liveness(
    ReplicaId replica, Incarnation incarnation) const {
  const auto found = watched_.find({replica, incarnation});
  return found == watched_.end() ? Liveness() : found->second.liveness;
}

std::vector<RankActivity> FailureDetector::ranks(
    ReplicaId replica, Incarnation incarnation, Instant now) const {
  const auto found = watched_.find({replica, incarnation});
  if (found == watched_.end()) {
    return {};
  }
  return view(found->first, now).ranks;
}

ReplicaActivity FailureDetector::view(const Life& life, Instant now) const {
  const auto& watched = watched_.at(life);
  ReplicaActivity view;
  view.replica = life.first;
  view.waits_for = watched.progress.waits_for;
  for (const auto& rank : watched.ranks) {
    view.ranks.push_back({rank.progress, now - rank.since});
  }
  return view;
}

std::string FailureDetector::report_of(const Life& life, Instant now) {
  if (++explained_ > kExplainedMax) {
    return {};
  }
  for (const auto& [replica, newest] : newest_) {
    if (all_.size() == newest_.size()) {
      break;
    }
    all_.push_back(view(newest, now));
  }
  const auto report = hang_report(view(life, now), all_);
  return report.empty() ? report : "; " + report;
}

std::vector<Finding> FailureDetector::tick(Instant now) {
  std::vector<Finding> found;
  all_.clear();
  explained_ = 0;
  find_silent(now, found);
  find_hung(now, found);
  find_slow(now, found);
  return found;
}

std::optional<double> FailureDetector::usual_s(
    const MonitoredReplica& watched) const {
  return watched.usual_s[index_of(watched.progress.activity)];
}

bool FailureDetector::is_first(const MonitoredReplica& watched) const {
  const auto activity = watched.progress.activity;
  // The usual length of these phases says nothing about an occasional evaluation.
  if (activity == Activity::kIdle || activity == Activity::kOtherWork) {
    return true;
  }
  const int ended = watched.ended[index_of(activity)];
  return activity == Activity::kComputing
      ? std::max(ended, watched.steps_computed) < kFirstSteps
      : ended < 1;
}

Duration FailureDetector::hard_limit(const MonitoredReplica& watched) const {
  const auto floor =
      is_first(watched) ? options_.first_floor : options_.hard_floor;
  return scaled(kHardFactor, usual_s(watched).value_or(0), floor);
}

bool FailureDetector::over_hard_limit(
    const MonitoredReplica& watched, Instant now) const {
  return busy(watched.progress) && now - watched.since > hard_limit(watched);
}

Duration FailureDetector::quiet(const MonitoredReplica& watched) const {
  Duration longest{0};
  for (const auto& rank : watched.ranks) {
    longest = std::max(longest, silence_of(rank.progress));
  }
  return longest;
}

// If one agent is silent, what the replica's agents have reported is old.
bool FailureDetector::hangs(
    const MonitoredReplica& watched, Instant now) const {
  const auto silent = quiet(watched);
  return silent > Duration(0) ? silent > options_.hard_floor
                              : over_hard_limit(watched, now);
}

std::vector<DeadLink> FailureDetector::dead_links_of(
    const std::vector<Life>& lives, Instant now) const {
  std::vector<ReplicaActivity> views;
  for (const auto& life : lives) {
    if (quiet(watched_.at(life)) == Duration(0)) {
      views.push_back(view(life, now));
    }
  }
  return dead_links(views);
}

const FailureDetector::Life* FailureDetector::life_of(
    std::optional<ReplicaId> replica) const {
  const auto found = replica ? newest_.find(*replica) : newest_.end();
  return found == newest_.end() ? nullptr : &found->second;
}

// Follows waits_for to the replica that waits for no other, is silent, or is known to hang. That
// replica hangs if it is over its own limit; otherwise it may still make progress. An idle replica
// has no limit of its own, so the limit of the one that waits for it applies. If a frame was sent
// but did not arrive, the culprit is the receiver: in a circle all replicas wait, and nothing else
// distinguishes them. There may be no circle until all of them have stood still for longer than the
// limit, because one may have reported before another moved. If another chain has already passed
// here, this one ends in the same way and is not followed again: all chains together take as many
// steps as there are replicas.
std::optional<FailureDetector::HangCulprit> FailureDetector::culprit(
    const Life& life, Instant now, SeenLives& seen) const {
  std::vector<Life> path;
  Life at = life;
  while (true) {
    const auto [place, is_new] = seen.try_emplace(at, life);
    if (!is_new && place->second != life) {
      return std::nullopt;
    }
    if (!is_new) {  // The chain is a circle.
      const auto limit = hard_limit(watched_.at(at));
      if (std::ranges::any_of(path, [&](const Life& one) {
            return now - watched_.at(one).since <= limit;
          })) {
        return std::nullopt;
      }
      break;
    }
    path.push_back(at);
    const auto& watched = watched_.at(at);
    const Life* next = life_of(watched.progress.waits_for);
    if (watched.liveness.hung || quiet(watched) > Duration(0) ||
        next == nullptr) {
      path.clear();
      break;
    }
    const auto& other = watched_.at(*next);
    const bool is_idle = other.progress.activity == Activity::kIdle;
    // Either it has moved, and `at` may report that in a moment, or it does something on its own.
    if (!busy(other.progress) && quiet(other) == Duration(0) &&
        now - other.since <= hard_limit(is_idle ? other : watched)) {
      return std::nullopt;
    }
    if (is_idle && over_hard_limit(watched, now)) {
      return HangCulprit{*next, {}};
    }
    if (!busy(other.progress) && quiet(other) == Duration(0)) {
      path = {at, *next};  // It has sent what `at` lacks.
      break;
    }
    at = *next;
  }
  if (!watched_.at(at).liveness.hung && !hangs(watched_.at(at), now)) {
    return std::nullopt;
  }
  const auto links = dead_links_of(path, now);
  const auto culprits = culprits_of(broken_links_of(links));
  const Life* end = culprits.empty() ? nullptr : life_of(culprits.front());
  return HangCulprit{
      end != nullptr && busy(watched_.at(*end).progress) ? *end : at, links};
}

void FailureDetector::find_silent(Instant now, std::vector<Finding>& found) {
  std::vector<Life> silent;
  for (const auto& [life, watched] : watched_) {
    if (now - watched.heard_at > options_.dead_after) {
      silent.push_back(life);
      found.push_back(
          {Finding::Kind::kSilent, life.first, life.second,
           str("nothing was heard for ", tenths(now - watched.heard_at),
               ", the limit is ", tenths(options_.dead_after),
               report_of(life, now))});
    }
  }
  for (const auto& [replica, incarnation] : silent) {
    ended(replica, incarnation);
    all_.clear();
  }
}

std::string FailureDetector::why_hung(const HangCulprit& blame, Instant now) {
  const auto& hangs = watched_.at(blame.life);
  std::string reason;
  if (const auto silent = quiet(hangs); silent > Duration(0)) {
    reason =
        str("one of its agents has said nothing for ", tenths(silent),
            ", the limit is ", tenths(options_.hard_floor));
  } else {
    reason =
        str("it has been ", text_of(hangs.progress.activity), " for ",
            tenths(now - hangs.since), ", the limit is ",
            tenths(hard_limit(hangs)));
  }
  for (const auto& link : blame.links) {
    reason += "; " + text_of(link);
  }
  return reason + report_of(blame.life, now);
}

void FailureDetector::find_hung(Instant now, std::vector<Finding>& found) {
  SeenLives seen;
  for (const auto& [life, waiting] : watched_) {
    if (waiting.liveness.hung || !hangs(waiting, now)) {
      continue;
    }
    const auto blame = culprit(life, now, seen);
    if (!blame || watched_.at(blame->life).liveness.hung) {
      continue;
    }
    watched_.at(blame->life).liveness.hung = true;
    found.push_back(
        {Finding::Kind::kHung, blame->life.first, blame->life.second,
         why_hung(*blame, now), blame->links});
  }
}

// A replica that waits for another is not slow itself.
void FailureDetector::find_slow(Instant now, std::vector<Finding>& found) {
  for (auto& [life, watched] : watched_) {
    const auto usual = usual_s(watched);
    if (watched.liveness.slow || !busy(watched.progress) ||
        watched.progress.waits_for || !usual ||
        now - watched.since <=
            scaled(kSoftFactor, *usual, options_.soft_floor)) {
      continue;
    }
    watched.liveness.slow = true;
    found.push_back(
        {Finding::Kind::kSlow, life.first, life.second,
         str("it has been ", text_of(watched.progress.activity), " for ",
             tenths(now - watched.since), ", it usually takes ",
             tenths(scaled(1, *usual, Duration(0))), report_of(life, now))});
  }
}

}  // namespace sherd::ft
