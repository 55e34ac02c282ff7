// SPDX-License-Identifier: Apache-2.0
#include "launch/stop_policy.h"

#include <algorithm>
#include <csignal>
#include <iterator>
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
  std::vector<RankExit> failures;
  std::copy_if(
      ends.begin(), ends.end(), std::back_inserter(failures),
      [this](const RankExit& end) {
        return end.failed() && !was_requested(end);
      });
  if (failure_ || failures.empty()) {
    return std::nullopt;
  }
  const auto killed = std::find_if(
      failures.begin(), failures.end(),
      [](const RankExit& end) { return end.signal != 0; });
  failure_ = killed == failures.end() ? failures.front() : *killed;
  if (state_ != State::kRunning || running_ == 0) {
    return std::nullopt;  // The others end already, in their own time.
  }
  state_ = State::kEnding;
  deadline_ = now + options_.failure_grace;
  sent_.push_back(SIGTERM);
  return SignalRequest{
      SIGTERM, SignalTarget::kGroups,
      str(describe(*failure_), "; ending the other ranks still running (",
          running_, ")")};
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
  if (state_ == State::kRunning) {
    state_ = State::kEnding;
    stop_signal_ = signal;
    deadline_ = now + options_.stop_grace;
  }
  sent_.push_back(signal);
  return SignalRequest{
      signal, SignalTarget::kGroups,
      str("passed ", describe_signal(signal), " on to the ranks, which have ",
          seconds(*deadline_ - now), " s to end")};
}

std::optional<SignalRequest> StopPolicy::time_passed(Instant now) {
  if (finished() || !deadline_ || now < *deadline_) {
    return std::nullopt;
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
  return failure_ ? failure_->status() : 0;
}

SignalRequest StopPolicy::kill(const std::string& why, Instant now) {
  state_ = State::kKilled;
  deadline_ = now + options_.kill_timeout;
  sent_.push_back(SIGKILL);
  return {SIGKILL, SignalTarget::kGroups, why + "; killing them"};
}

// An end by a signal that was sent is no failure of the rank; one by anything
// else is, say while it saves its state.
bool StopPolicy::was_requested(const RankExit& end) const {
  return std::any_of(sent_.begin(), sent_.end(), [&](int signal) {
    return end.status() == 128 + signal;
  });
}

}  // namespace sherd::launch
