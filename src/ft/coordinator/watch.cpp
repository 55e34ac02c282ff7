// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/watch.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "base/check.h"

namespace sherd::ft {
namespace {

// Weight of the last phase in the moving average.
constexpr double kLastWeight = 0.2;

// Who waits for the coordinator, or for nothing, has no deadline.
bool busy(const Progress& progress) {
  return progress.activity != Activity::kIdle &&
      progress.activity != Activity::kWaiting;
}

Duration scaled(double factor, double usual_s, Duration floor) {
  const auto limit = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(factor * usual_s));
  return std::max(limit, floor);
}

std::string tenths(Duration duration) {
  const auto tenths = duration / std::chrono::milliseconds(100);
  return str(tenths / 10, ".", tenths % 10, " s");
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

void Watch::heard(
    ReplicaId replica,
    Incarnation incarnation,
    const Progress& progress,
    Instant now) {
  const Life life{replica, incarnation};
  const auto [found, is_new] = watched_.try_emplace(life);
  Watched& watched = found->second;
  watched.heard_at = now;
  if (is_new) {
    watched.progress = progress;
    watched.since = now;
    newest_[replica] = life;
    return;
  }
  if (watched.progress.serial == progress.serial &&
      watched.progress.activity == progress.activity) {
    watched.progress.waits_for = progress.waits_for;
    return;
  }
  const auto activity = static_cast<std::size_t>(watched.progress.activity);
  SHERD_ASSERT(activity < kActivities, "an activity that nobody decodes");
  auto& usual = watched.usual_s[activity];
  const double last_s = seconds(now - watched.since);
  usual = usual ? *usual + kLastWeight * (last_s - *usual) : last_s;
  if (watched.progress.activity == Activity::kComputing &&
      progress.activity != Activity::kComputing) {
    ++watched.computed;
  }
  watched.progress = progress;
  watched.since = now;
  watched.slow = false;
  watched.hung = false;
}

void Watch::ended(ReplicaId replica, Incarnation incarnation) {
  const Life life{replica, incarnation};
  watched_.erase(life);
  const auto newest = newest_.find(replica);
  if (newest != newest_.end() && newest->second == life) {
    newest_.erase(newest);
  }
}

bool Watch::hung(ReplicaId replica, Incarnation incarnation) const {
  const auto found = watched_.find({replica, incarnation});
  return found != watched_.end() && found->second.hung;
}

bool Watch::slow(ReplicaId replica, Incarnation incarnation) const {
  const auto found = watched_.find({replica, incarnation});
  return found != watched_.end() && found->second.slow;
}

std::vector<Finding> Watch::tick(Instant now) {
  std::vector<Finding> found;
  find_silent(now, found);
  find_hung(now, found);
  find_slow(now, found);
  return found;
}

std::optional<double> Watch::usual_s(const Watched& watched) const {
  return watched.usual_s[static_cast<std::size_t>(watched.progress.activity)];
}

Duration Watch::hard_limit(const Watched& watched) const {
  const bool first = watched.progress.activity == Activity::kComputing &&
      watched.computed < options_.first_steps;
  return scaled(
      options_.hard_factor, usual_s(watched).value_or(0),
      first ? options_.first_floor : options_.hard_floor);
}

Duration Watch::soft_limit(const Watched& watched) const {
  return scaled(
      options_.soft_factor, usual_s(watched).value_or(0), options_.soft_floor);
}

bool Watch::over_hard_limit(const Watched& watched, Instant now) const {
  return busy(watched.progress) && now - watched.since > hard_limit(watched);
}

const Watch::Life* Watch::life_of(ReplicaId replica) const {
  const auto found = newest_.find(replica);
  return found == newest_.end() ? nullptr : &found->second;
}

// Follows waits_for to the one that waits for nobody, or that is known to hang. It
// hangs if it is over its own limit: else it may still come. One that does nothing
// has none: then it is the limit of who waits for it. In a circle it is where it
// began.
std::optional<Watch::Life> Watch::culprit(const Life& life, Instant now) const {
  std::set<Life> seen;
  Life at = life;
  while (seen.insert(at).second && !watched_.at(at).hung) {
    const auto& waits_for = watched_.at(at).progress.waits_for;
    const Life* next = waits_for ? life_of(*waits_for) : nullptr;
    if (next == nullptr) {
      break;
    }
    const auto& other = watched_.at(*next).progress;
    if (other.activity == Activity::kIdle &&
        over_hard_limit(watched_.at(at), now)) {
      return *next;
    }
    if (!busy(other)) {
      break;  // It has what `at` lacks.
    }
    at = *next;
  }
  return over_hard_limit(watched_.at(at), now) ? std::optional(at)
                                               : std::nullopt;
}

void Watch::find_silent(Instant now, std::vector<Finding>& found) {
  std::vector<Life> silent;
  for (const auto& [life, watched] : watched_) {
    if (now - watched.heard_at > options_.dead_after) {
      silent.push_back(life);
      found.push_back(
          {Finding::Kind::kSilent, life.first, life.second,
           str("nothing was heard for ", tenths(now - watched.heard_at),
               ", the limit is ", tenths(options_.dead_after))});
    }
  }
  for (const auto& [replica, incarnation] : silent) {
    ended(replica, incarnation);
  }
}

void Watch::find_hung(Instant now, std::vector<Finding>& found) {
  for (const auto& [life, waiting] : watched_) {
    if (waiting.hung || !over_hard_limit(waiting, now)) {
      continue;
    }
    const auto sink = culprit(life, now);
    if (!sink || watched_.at(*sink).hung) {
      continue;
    }
    Watched& hangs = watched_.at(*sink);
    hangs.hung = true;
    std::string reason =
        str("it has been ", text_of(hangs.progress.activity), " for ",
            tenths(now - hangs.since), ", the limit is ",
            tenths(hard_limit(hangs)));
    if (*sink != life) {
      reason += str("; replica ", life.first, " waits for it");
    }
    found.push_back(
        {Finding::Kind::kHung, sink->first, sink->second, std::move(reason)});
  }
}

// Who waits for another is not slow itself.
void Watch::find_slow(Instant now, std::vector<Finding>& found) {
  for (auto& [life, watched] : watched_) {
    if (watched.slow || !busy(watched.progress) || watched.progress.waits_for ||
        !usual_s(watched) || now - watched.since <= soft_limit(watched)) {
      continue;
    }
    watched.slow = true;
    found.push_back(
        {Finding::Kind::kSlow, life.first, life.second,
         str("it has been ", text_of(watched.progress.activity), " for ",
             tenths(now - watched.since), ", it usually takes ",
             tenths(scaled(1, *usual_s(watched), Duration(0))))});
  }
}

}  // namespace sherd::ft
