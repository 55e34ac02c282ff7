// SPDX-License-Identifier: Apache-2.0
#include "launch/stop_policy.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include "base/check.h"

namespace sherd::launch {

StopPolicy::StopPolicy(const StopPolicyOptions& options)
    : options_(options), running_(options.ranks) {
  SHERD_ASSERT(options.ranks >= 1);
}

std::optional<SignalRequest> StopPolicy::ranks_ended(
    const std::vector<RankExit>& ends, Instant now) {
  running_ -= static_cast<int>(ends.size());
  SHERD_ASSERT(running_ >= 0, "more ranks ended than were started");
  const auto first_new = static_cast<std::ptrdiff_t>(failures_.size());
  for (const RankExit& end : ends) {
    ended_.insert(end.rank);
    if (end.failed() && !was_requested(end)) {
      failures_.push_back(end);
    }
  }
  std::stable_partition(
      failures_.begin() + first_new, failures_.end(),
      [](const RankExit& end) { return end.signal != 0; });
  const bool ending = state_ != State::kRunning && state_ != State::kAwaiting;
  if (failures_.empty() || ending || running_ == 0) {
    // The remaining ranks are ending already, in their own time.
    return std::nullopt;
  }
  const bool records = options_.record_grace > Duration(0);
  if (!records && !cause_is_running()) {
    return end_others(now);
  }
  if (state_ == State::kRunning) {
    state_ = State::kAwaiting;
    deadline_ = now + (records ? options_.record_grace : options_.cause_grace);
  }
  return std::nullopt;
}

std::optional<RankExit> StopPolicy::first_failure() const {
  return failures_.empty() ? std::nullopt
                           : std::optional(first_to_fail(failures_));
}

bool StopPolicy::cause_is_running() const {
  const std::optional<int> cause = first_to_fail(failures_).blames;
  return cause && *cause < options_.ranks && !ended_.contains(*cause);
}

SignalRequest StopPolicy::end_others(Instant now) {
  state_ = State::kEnding;
  deadline_ = now + options_.failure_grace;
  sent_.push_back(SIGTERM);
  return {
      SIGTERM, SignalTarget::kGroups,
      str(describe(first_to_fail(failures_)),
          "; ending the other ranks still running (", running_, ")")};
}

std::optional<SignalRequest> StopPolicy::signal_received(
    int signal, Instant now) {
  if (finished() || state_ == State::kKilled) {
    return std::nullopt;
  }
  if (signal == SIGUSR1 || signal == SIGUSR2) {
    return SignalRequest{
        signal, SignalTarget::kRanks,
        str("passed ", describe_signal(signal), " on to the ranks")};
  }
  if (state_ == State::kEnding && signal == SIGINT) {
    return kill("interrupted while the ranks were ending", now);
  }
  const bool first = state_ == State::kRunning || state_ == State::kAwaiting;
  stop_signal_ = first ? signal : stop_signal_;
  if (signal == SIGQUIT) {
    return kill("got " + describe_signal(signal), now);
  }
  if (first) {
    state_ = State::kEnding;
    deadline_ = now + options_.stop_grace;
  }
  sent_.push_back(signal);
  return SignalRequest{
      signal, SignalTarget::kGroups,
      str("passed ", describe_signal(signal), " on to the ranks, which have ",
          std::lround(seconds(*deadline_ - now)), " s to end")};
}

std::optional<SignalRequest> StopPolicy::time_passed(Instant now) {
  if (finished() || !deadline_ || now < *deadline_) {
    return std::nullopt;
  }
  if (state_ == State::kAwaiting) {
    return end_others(now);
  }
  if (state_ == State::kEnding) {
    return kill(str("ranks still running: ", running_), now);
  }
  state_ = State::kGivenUp;
  deadline_.reset();
  return std::nullopt;
}

int StopPolicy::exit_status() const {
  SHERD_ASSERT(finished());
  if (stop_signal_ != 0) {
    return 128 + stop_signal_;
  }
  return failures_.empty() ? 0 : first_to_fail(failures_).status();
}

SignalRequest StopPolicy::kill(const std::string& why, Instant now) {
  state_ = State::kKilled;
  deadline_ = now + kKillTimeout;
  sent_.push_back(SIGKILL);
  return {SIGKILL, SignalTarget::kGroups, why + "; killing them"};
}

// An end by a signal that was sent is no failure of the rank; an end by anything else is, for
// example while it saves its state.
bool StopPolicy::was_requested(const RankExit& end) const {
  return std::ranges::any_of(
      sent_, [&](int signal) { return end.status() == 128 + signal; });
}

}  // namespace sherd::launch
