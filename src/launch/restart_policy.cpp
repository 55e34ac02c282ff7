// SPDX-License-Identifier: Apache-2.0
#include "launch/restart_policy.h"

#include <algorithm>
#include <csignal>
#include <utility>
#include "base/check.h"

namespace sherd::launch {
namespace {

Status refusal(const std::string& why) {
  return Status(ErrorCode::kFailedPrecondition, why);
}

// How often a replica that fails after others have succeeded is restarted to learn whether the run
// has ended.
constexpr int kRestartsAfterDone = 3;

// A group that has run so long is healthy: its next failure waits from the beginning. It has also
// understood its command line.
constexpr Duration kWellAfter = std::chrono::minutes(5);

// The time from a rank's failure to SIGKILL for its siblings. It is short: what they hold is lost
// anyway, and the replica is missed.
constexpr Duration kFailureGrace = std::chrono::milliseconds(200);

}  // namespace

RestartPolicy::RestartPolicy(const RestartPolicyOptions& options)
    : options_(options) {
  SHERD_ASSERT(options.replicas >= 1 && options.ranks >= 1);
  SHERD_ASSERT(options.spares >= 0 && options.restarts_max >= 0);
  for (int group = 0; group < options.replicas + options.spares; ++group) {
    groups_.push_back(
        {.replica =
             group < options.replicas ? std::optional(group) : std::nullopt,
         .budget =
             RestartBudget(options.restarts_max, options.restart_window)});
  }
}

GroupActions RestartPolicy::begin(Instant now) {
  now_ = now;
  begun_ = true;
  for (std::size_t i = 0; i < groups_.size() && stop_signal_ == 0 && !over_;
       ++i) {
    start(i, "");
  }
  return std::exchange(actions_, {});
}

GroupActions RestartPolicy::ranks_ended(
    const std::vector<RankExit>& ends, Instant now) {
  now_ = now;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    std::vector<RankExit> of_group;
    for (const RankExit& each : ends) {
      if (each.group == static_cast<int>(i)) {
        of_group.push_back(each);
      }
    }
    if (of_group.empty()) {
      continue;
    }
    Group& group = groups_[i];
    if (group.hangs) {
      // These ends come late: the group has been given up. With the last of them an operator may
      // admit the replica again.
      group.stop_policy->ranks_ended(of_group, now);
      group.hangs = group.stop_policy->running() > 0;
      continue;
    }
    SHERD_ASSERT(group.state == State::kRunning);
    // Its reason is reported when all have ended, which is soon.
    signal(i, group.stop_policy->ranks_ended(of_group, now));
    if (group.stop_policy->finished()) {
      group_ended(i);
    }
  }
  return end_purposeless_groups();
}

GroupActions RestartPolicy::start_failed(
    int group, int status, const std::string& why, Instant now) {
  now_ = now;
  const auto index = static_cast<std::size_t>(group);
  SHERD_ASSERT(groups_[index].state == State::kRunning);
  if (stop_signal_ != 0) {
    groups_[index].state = State::kFailed;
    return {};
  }
  const std::string what = str(name(index), " could not be started: ", why);
  if (groups_[index].replica) {
    failure_ = {group, what, std::nullopt, status};
  }
  if (groups_[index].draining) {
    groups_[index].state = State::kDrained;
    say(what + "; it had been asked to leave");
  } else if (!groups_[index].proved) {
    groups_[index].state = State::kFailed;
    say(what);
  } else {
    start_again(index, what);
  }
  return end_purposeless_groups();
}

GroupActions RestartPolicy::signal_received(int number, Instant now) {
  now_ = now;
  if (number == SIGUSR1) {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].replica) {
        request_leave(i);
      }
    }
    return end_purposeless_groups();
  }
  if (number != SIGUSR2 && stop_signal_ == 0) {
    stop_signal_ = number;
    give_up_waiting();
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    if (group.state == State::kRunning &&
        (group.replica || number != SIGUSR2)) {
      const auto request = group.stop_policy->signal_received(number, now);
      // The reason is the same for all of them: one sentence is enough.
      signal(i, request, request && actions_.empty() ? request->reason : "");
    }
  }
  return std::exchange(actions_, {});
}

GroupActions RestartPolicy::time_passed(Instant now) {
  now_ = now;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    if (group.state == State::kWaiting && now >= group.start_at) {
      start(i, name(i) + " is started again");
    } else if (group.state == State::kRunning) {
      const auto request = group.stop_policy->time_passed(now);
      signal(i, request, request ? name(i) + ": " + request->reason : "");
      if (group.stop_policy->finished()) {  // It has given up waiting.
        group_ended(i);
      }
    }
  }
  return end_purposeless_groups();
}

std::optional<Instant> RestartPolicy::deadline() const {
  std::optional<Instant> first;
  for (const Group& group : groups_) {
    if (group.state == State::kWaiting) {
      first = earlier(first, group.start_at);
    } else if (group.state == State::kRunning) {
      first = earlier(first, group.stop_policy->deadline());
    }
  }
  return first;
}

Status RestartPolicy::can_ask_about(int replica) const {
  if (replica < 0 || replica >= options_.replicas) {
    return refusal(
        str("expected a replica from 0 to ", options_.replicas - 1, ", found ",
            replica));
  }
  if (stop_signal_ != 0 || over_) {
    return refusal("the job is ending");
  }
  return begun_ ? Status() : refusal("the job is starting");
}

Result<GroupActions> RestartPolicy::drain(int replica, Instant now) {
  SHERD_RETURN_IF_FAILED(can_ask_about(replica));
  const std::size_t index = group_of(replica);
  const State state = groups_[index].state;
  if (state != State::kRunning && state != State::kWaiting) {
    return refusal(
        str("replica ", replica,
            state == State::kDrained    ? " has left already"
                : state == State::kDone ? " is done"
                                        : " is not running"));
  }
  now_ = now;
  request_leave(index);
  return end_purposeless_groups();
}

Result<GroupActions> RestartPolicy::admit(int replica, Instant now) {
  SHERD_RETURN_IF_FAILED(can_ask_about(replica));
  const std::size_t index = group_of(replica);
  Group& group = groups_[index];
  if (group.state == State::kRunning) {
    return refusal(
        str("replica ", replica,
            group.draining ? " is still leaving" : " is running"));
  }
  if (group.hangs) {
    return refusal(
        str("a process of replica ", replica, " hangs in the kernel"));
  }
  group.backoff.reset();
  group.proved = false;
  group.budget.renew();
  now_ = now;
  start(index, name(index) + " is admitted");
  return std::exchange(actions_, {});
}

bool RestartPolicy::finished() const {
  return !any(State::kRunning) && !any(State::kWaiting);
}

int RestartPolicy::exit_status() const {
  SHERD_ASSERT(finished());
  if (stop_signal_ != 0) {
    return 128 + stop_signal_;
  }
  const bool failed = std::ranges::any_of(groups_, [](const Group& group) {
    return group.replica && group.state == State::kFailed;
  });
  return failed && !last_was_done_ ? failure_.value().status
      : all_left()                 ? kAllLeft
                                   : 0;
}

bool RestartPolicy::all_left() const {
  return std::ranges::all_of(groups_, [](const Group& group) {
    return !group.replica || group.state == State::kDrained;
  });
}

std::size_t RestartPolicy::group_of(int replica) const {
  const auto found = std::ranges::find_if(
      groups_, [&](const Group& group) { return group.replica == replica; });
  // A replica passes from group to group and is never without one.
  SHERD_ASSERT(found != groups_.end());
  return static_cast<std::size_t>(found - groups_.begin());
}

std::string RestartPolicy::name(std::size_t index) const {
  const std::optional<int> replica = groups_[index].replica;
  return replica ? str("replica ", *replica) : str("spare ", index);
}

bool RestartPolicy::any(State state) const {
  return std::ranges::any_of(
      groups_, [&](const Group& group) { return group.state == state; });
}

void RestartPolicy::say(const std::string& reason) {
  actions_.push_back({.reason = reason});
}

// Does nothing without a request.
void RestartPolicy::signal(
    std::size_t index,
    const std::optional<SignalRequest>& request,
    const std::string& reason) {
  if (request) {
    actions_.push_back(
        {.what = GroupAction::What::kSignal,
         .group = static_cast<int>(index),
         .signal = *request,
         .reason = reason});
  }
}

void RestartPolicy::start(std::size_t index, const std::string& reason) {
  Group& group = groups_[index];
  group.stop_policy.emplace(StopPolicyOptions{
      .ranks = options_.ranks,
      .failure_grace = kFailureGrace,
      .cause_grace = Duration(0),  // Restarts are quick, so no cause is needed.
      .stop_grace = options_.stop_grace});
  group.state = State::kRunning;
  group.draining = false;
  group.started = now_;
  actions_.push_back(
      {.what = GroupAction::What::kStart,
       .group = static_cast<int>(index),
       .replica = group.replica,
       .reason = reason});
}

void RestartPolicy::group_ended(std::size_t index) {
  Group& group = groups_[index];
  const std::optional<RankExit> end = group.stop_policy->first_failure();
  const std::string what = name(index) + ": " +
      (end ? describe(*end) + hint_of(*end) : "all ranks returned");
  group.hangs = group.stop_policy->running() > 0;
  if (group.replica && !group.draining) {
    last_was_done_ = !end && !group.hangs;
  }
  if (end && group.replica) {
    failure_ = {static_cast<int>(index), what, end->rank, end->status()};
  }
  if (stop_signal_ != 0 || over_ || group.hangs) {
    group.state = State::kFailed;
    if (end && group.replica) {
      say(what +
          (group.hangs ? "; a process of it outlives SIGKILL"
                       : " after it was told to end"));
    }
  } else if (!group.replica) {
    // A spare must wait, so its end is a failure whatever it returned.
    start_again(index, what);
  } else if (group.draining) {
    group.state = State::kDrained;
    say(end ? what + "; it had been asked to leave"
            : name(index) + " has left");
  } else if (!end) {
    group.state = State::kDone;
  } else if (const auto why = why_in_vain(group, *end); !why.empty()) {
    group.state = State::kFailed;
    say(str(what, ", ", why, "; it is not started again"));
  } else {
    failed(index, what);
  }
}

// Why it is in vain to start a replica again that has ended so; empty if it may help.
std::string RestartPolicy::why_in_vain(
    const Group& group, const RankExit& end) const {
  if (end.exit_code != kWrongUsage) {
    return "";
  }
  if (end.refused) {
    return "since the coordinator has refused it for good";
  }
  const bool is_soon = now_ - group.started < kWellAfter;
  return is_soon && !group.proved ? "which is wrong usage" : "";
}

void RestartPolicy::failed(std::size_t index, const std::string& what) {
  const std::optional<std::size_t> spare = running_spare();
  if (!spare) {
    start_again(index, what);
    return;
  }
  const int replica = *std::exchange(groups_[index].replica, std::nullopt);
  groups_[*spare].replica = replica;
  groups_[*spare].proved = true;
  actions_.push_back(
      {.what = GroupAction::What::kPromote,
       .group = static_cast<int>(*spare),
       .replica = replica,
       .reason = str(what, "; spare ", *spare, " takes its place")});
  start_again(index, "what was replica " + str(replica));
}

void RestartPolicy::start_again(std::size_t index, const std::string& what) {
  Group& group = groups_[index];
  std::string reason = what;
  if (now_ - group.started >= kWellAfter) {
    group.backoff.reset();
  }
  const Duration wait = group.backoff.next();
  group.restarts_after_done =
      wait == Duration(0) ? 0 : group.restarts_after_done;
  if (group.replica && any(State::kDone) &&
      group.restarts_after_done++ == kRestartsAfterDone) {
    group.state = State::kFailed;
    reason += "; it is not started again, since others are done";
  } else if (!group.budget.take(now_)) {
    group.state = State::kFailed;
    const Duration window = options_.restart_window;
    reason +=
        str("; it is not started again, since it was ", options_.restarts_max,
            " times already",
            window > Duration(0) ? str(" within ", seconds(window), " s") : "",
            " (--max-restarts, --restart-window)");
  } else {
    group.proved = true;
    reason += str("; ", name(index), " is started again ", in_words(wait));
    if (wait == Duration(0)) {
      start(index, reason);
      return;
    }
    group.state = State::kWaiting;
    group.start_at = now_ + wait;
  }
  say(reason);
}

std::optional<std::size_t> RestartPolicy::running_spare() const {
  const auto found = std::ranges::find_if(groups_, [](const Group& group) {
    return !group.replica && group.state == State::kRunning &&
        !group.stop_policy->first_failure();
  });
  return found == groups_.end()
      ? std::nullopt
      : std::optional(static_cast<std::size_t>(found - groups_.begin()));
}

void RestartPolicy::request_leave(std::size_t index) {
  Group& group = groups_[index];
  if (group.state == State::kWaiting || group.state == State::kIdle) {
    group.state = State::kDrained;
    say(name(index) + " stays away");
  } else if (group.state == State::kRunning) {
    group.draining = true;
    signal(
        index, SignalRequest{SIGUSR1, SignalTarget::kFirstRank, ""},
        name(index) + " was asked to leave");
  }
}

void RestartPolicy::give_up_waiting() {
  for (Group& group : groups_) {
    if (group.state == State::kWaiting) {
      group.state = State::kFailed;
    }
  }
}

GroupActions RestartPolicy::end_purposeless_groups() {
  const auto runs = [](const Group& group) {
    return group.replica && group.state == State::kRunning;
  };
  const auto runs_or_will = [](const Group& group) {
    return group.replica && group.state != State::kDone &&
        group.state != State::kDrained && group.state != State::kFailed;
  };
  // The run has ended: a waiting replica would learn no more than that.
  if (last_was_done_ && std::ranges::none_of(groups_, runs)) {
    give_up_waiting();
  }
  if (!over_ && stop_signal_ == 0 &&
      std::ranges::none_of(groups_, runs_or_will)) {
    over_ = true;
    give_up_waiting();
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].state == State::kRunning) {
        signal(i, groups_[i].stop_policy->signal_received(SIGTERM, now_));
      }
    }
  }
  return std::exchange(actions_, {});
}

}  // namespace sherd::launch
