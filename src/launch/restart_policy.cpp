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

// What programs return for a command line that they do not understand.
constexpr int kWrongUsage = 2;

// How often a replica that fails after others have succeeded is started to hear whether the run
// has ended.
constexpr int kRestartsAfterDone = 3;

std::string in_words(Duration wait) {
  return wait == Duration(0) ? "at once" : str("in ", seconds(wait), " s");
}

}  // namespace

RestartPolicy::RestartPolicy(const RestartPolicyOptions& options)
    : options_(options) {
  SHERD_ASSERT(options.replicas >= 1 && options.ranks >= 1);
  SHERD_ASSERT(options.spares >= 0 && options.restarts_max >= 0);
  for (int group = 0; group < options.replicas + options.spares; ++group) {
    Group& added = groups_.emplace_back(Group{
        .replica = {},
        .budget = RestartBudget(
            {.restarts_max = options.restarts_max,
             .window = options.restart_window}),
        .backoff = Backoff(options.backoff),
        .stop_policy = {}});
    if (group < options.replicas) {
      added.replica = group;
    }
  }
}

GroupActions RestartPolicy::begin(Instant now) {
  GroupActions actions;
  for (std::size_t i = 0; i < groups_.size() && stop_signal_ == 0; ++i) {
    start(i, now, "", actions);
  }
  return actions;
}

GroupActions RestartPolicy::ranks_ended(
    const std::vector<GroupRankExit>& ends, Instant now) {
  GroupActions actions;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    std::vector<RankExit> of_group;
    for (const GroupRankExit& each : ends) {
      if (each.group == static_cast<int>(i)) {
        of_group.push_back(each.end);
      }
    }
    if (of_group.empty()) {
      continue;
    }
    SHERD_ASSERT(groups_[i].state == State::kRunning);
    const auto action = groups_[i].stop_policy->ranks_ended(of_group, now);
    if (action) {  // Its reason is told when all have ended, which is soon.
      actions.push_back({SignalGroup{static_cast<int>(i), *action}});
    }
    if (groups_[i].stop_policy->finished()) {
      group_ended(i, now, actions);
    }
  }
  end_purposeless_groups(now, actions);
  return actions;
}

GroupActions RestartPolicy::start_failed(
    int group, int status, const std::string& why, Instant now) {
  GroupActions actions;
  const auto index = static_cast<std::size_t>(group);
  SHERD_ASSERT(groups_[index].state == State::kRunning);
  if (stop_signal_ != 0) {
    groups_[index].state = State::kFailed;
    return actions;
  }
  const std::string what = str(name(index), " could not be started: ", why);
  if (groups_[index].replica) {
    failure_ = {group, what, std::nullopt, status};
  }
  if (groups_[index].restarts == 0) {
    groups_[index].state = State::kFailed;
    actions.push_back({std::monostate(), what});
  } else {
    start_again(index, what, now, actions);
  }
  end_purposeless_groups(now, actions);
  return actions;
}

GroupActions RestartPolicy::signal_received(int signal, Instant now) {
  GroupActions actions;
  if (signal == SIGUSR1) {
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].replica) {
        request_leave(i, actions);
      }
    }
    end_purposeless_groups(now, actions);
    return actions;
  }
  if (signal != SIGUSR2 && stop_signal_ == 0) {
    stop_signal_ = signal;
    for (Group& group : groups_) {
      group.state =
          group.state == State::kWaiting ? State::kFailed : group.state;
    }
  }
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    if (group.state == State::kRunning &&
        (group.replica || signal != SIGUSR2)) {
      const auto action = group.stop_policy->signal_received(signal, now);
      if (action) {
        // The same for all of them: one sentence is enough.
        actions.push_back(
            {SignalGroup{static_cast<int>(i), *action},
             actions.empty() ? action->reason : ""});
      }
    }
  }
  return actions;
}

GroupActions RestartPolicy::time_passed(Instant now) {
  GroupActions actions;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    if (group.state == State::kWaiting && now >= group.start_at) {
      start(i, now, name(i) + " is started again", actions);
    } else if (group.state == State::kRunning) {
      const auto action = group.stop_policy->time_passed(now);
      if (action) {
        actions.push_back(
            {SignalGroup{static_cast<int>(i), *action},
             name(i) + ": " + action->reason});
      }
      if (group.stop_policy->finished()) {  // It gave up waiting.
        group_ended(i, now, actions);
      }
    }
  }
  end_purposeless_groups(now, actions);
  return actions;
}

std::optional<Instant> RestartPolicy::deadline() const {
  std::optional<Instant> first;
  for (const Group& group : groups_) {
    std::optional<Instant> mine;
    if (group.state == State::kWaiting) {
      mine = group.start_at;
    } else if (group.state == State::kRunning) {
      mine = group.stop_policy->deadline();
    }
    if (mine && (!first || *mine < *first)) {
      first = mine;
    }
  }
  return first;
}

Result<GroupActions> RestartPolicy::drain(int replica, Instant now) {
  if (replica < 0 || replica >= options_.replicas) {
    return refusal(
        str("expected a replica from 0 to ", options_.replicas - 1, ", found ",
            replica));
  }
  const std::size_t index = group_of(replica);
  const State state = groups_[index].state;
  if (stop_signal_ != 0 || over_) {
    return refusal("the job is ending");
  }
  if (state != State::kRunning && state != State::kWaiting) {
    return refusal(
        str("replica ", replica,
            state == State::kDrained    ? " has left already"
                : state == State::kDone ? " is done"
                                        : " is not running"));
  }
  GroupActions actions;
  request_leave(index, actions);
  end_purposeless_groups(now, actions);
  return actions;
}

Result<GroupActions> RestartPolicy::admit(int replica, Instant now) {
  if (replica < 0 || replica >= options_.replicas) {
    return refusal(
        str("expected a replica from 0 to ", options_.replicas - 1, ", found ",
            replica));
  }
  const std::size_t index = group_of(replica);
  Group& group = groups_[index];
  if (stop_signal_ != 0 || over_) {
    return refusal("the job is ending");
  }
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
  group.restarts = 0;
  group.budget.renew();
  GroupActions actions;
  start(index, now, name(index) + " is admitted", actions);
  return actions;
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
  // A replica changes hands, it is never without a group.
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

bool RestartPolicy::replica_runs() const {
  return std::ranges::any_of(groups_, [](const Group& group) {
    return group.replica && group.state == State::kRunning;
  });
}

bool RestartPolicy::replicas_left() const {
  return std::ranges::any_of(groups_, [](const Group& group) {
    return group.replica && group.state != State::kDone &&
        group.state != State::kDrained && group.state != State::kFailed;
  });
}

void RestartPolicy::start(
    std::size_t index,
    Instant now,
    const std::string& reason,
    GroupActions& actions) {
  Group& group = groups_[index];
  StopPolicyOptions life;
  life.ranks = options_.ranks;
  life.failure_grace = options_.failure_grace;
  life.cause_grace = Duration(0);  // Who starts again soon needs no cause.
  life.stop_grace = options_.stop_grace;
  group.stop_policy.emplace(life);
  group.state = State::kRunning;
  group.draining = false;
  group.started = now;
  actions.push_back(
      {StartGroup{static_cast<int>(index), group.replica}, reason});
}

void RestartPolicy::group_ended(
    std::size_t index, Instant now, GroupActions& actions) {
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
      actions.push_back(
          {std::monostate(),
           what +
               (group.hangs ? "; a process of it outlives SIGKILL"
                            : " after it was told to end")});
    }
  } else if (!group.replica) {
    // A spare that ends has not waited, whatever it returned.
    start_again(index, what, now, actions);
  } else if (group.draining) {
    group.state = State::kDrained;
    actions.push_back(
        {std::monostate(),
         end ? what + "; it had been asked to leave"
             : name(index) + " has left"});
  } else if (!end) {
    group.state = State::kDone;
  } else if (end->exit_code == kWrongUsage && group.restarts == 0) {
    group.state = State::kFailed;
    actions.push_back(
        {std::monostate(),
         what + ", which is wrong usage; it is not started again"});
  } else {
    failed(index, what, now, actions);
  }
}

void RestartPolicy::failed(
    std::size_t index,
    const std::string& what,
    Instant now,
    GroupActions& actions) {
  const std::optional<std::size_t> spare = running_spare();
  if (!spare) {
    start_again(index, what, now, actions);
    return;
  }
  const int replica = *std::exchange(groups_[index].replica, std::nullopt);
  groups_[*spare].replica = replica;
  actions.push_back(
      {PromoteSpare{static_cast<int>(*spare), replica},
       str(what, "; spare ", *spare, " takes its place")});
  start_again(index, "what was replica " + str(replica), now, actions);
}

void RestartPolicy::start_again(
    std::size_t index,
    const std::string& what,
    Instant now,
    GroupActions& actions) {
  Group& group = groups_[index];
  std::string reason = what;
  if (now - group.started >= options_.well_after) {
    group.backoff.reset();
  }
  const Duration wait = group.backoff.next();
  group.restarts_after_done =
      wait == Duration(0) ? 0 : group.restarts_after_done;
  if (group.replica && any(State::kDone) &&
      group.restarts_after_done++ == kRestartsAfterDone) {
    group.state = State::kFailed;
    reason += "; it is not started again, since others are done";
  } else if (!group.budget.take(now)) {
    group.state = State::kFailed;
    const Duration window = options_.restart_window;
    reason +=
        str("; it is not started again, since it was ", options_.restarts_max,
            " times already",
            window > Duration(0) ? str(" within ", seconds(window), " s") : "",
            " (--max-restarts, --restart-window)");
  } else {
    ++group.restarts;
    reason += str("; ", name(index), " is started again ", in_words(wait));
    if (wait == Duration(0)) {
      start(index, now, reason, actions);
      return;
    }
    group.state = State::kWaiting;
    group.start_at = now + wait;
  }
  actions.push_back({std::monostate(), reason});
}

std::optional<std::size_t> RestartPolicy::running_spare() const {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    if (!group.replica && group.state == State::kRunning &&
        !group.stop_policy->first_failure()) {
      return i;
    }
  }
  return std::nullopt;
}

void RestartPolicy::request_leave(std::size_t index, GroupActions& actions) {
  Group& group = groups_[index];
  if (group.state == State::kWaiting) {
    group.state = State::kDrained;
    actions.push_back({std::monostate(), name(index) + " stays away"});
  } else if (group.state == State::kRunning) {
    group.draining = true;
    actions.push_back(
        {SignalGroup{
             static_cast<int>(index), {SIGUSR1, SignalTarget::kFirstRank, ""}},
         name(index) + " was asked to leave"});
  }
}

void RestartPolicy::end_purposeless_groups(Instant now, GroupActions& actions) {
  // The run has ended: who waits would hear no more than that.
  if (last_was_done_ && !replica_runs()) {
    for (Group& group : groups_) {
      group.state =
          group.state == State::kWaiting ? State::kFailed : group.state;
    }
  }
  if (over_ || stop_signal_ != 0 || replicas_left()) {
    return;
  }
  over_ = true;
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    if (group.state == State::kRunning) {
      const auto action = group.stop_policy->signal_received(SIGTERM, now);
      if (action) {
        actions.push_back({SignalGroup{static_cast<int>(i), *action}});
      }
    } else if (group.state == State::kWaiting) {
      group.state = State::kFailed;
    }
  }
}

}  // namespace sherd::launch
