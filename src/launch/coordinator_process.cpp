// SPDX-License-Identifier: Apache-2.0
#include "launch/coordinator_process.h"

#include <unistd.h>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>
#include "base/check.h"
#include "base/status.h"
#include "launch/rank_variables.h"

namespace sherd::launch {
namespace {

// The limit until it listens for the first time; it may have a long log to read.
constexpr Duration kStartTimeout = std::chrono::seconds(60);
constexpr Duration kPollInterval = std::chrono::milliseconds(10);
// A coordinator that has served for as long as a term takes to begin was healthy.
constexpr Duration kHealthyAfter = std::chrono::seconds(2);
constexpr Duration kStopTimeout = std::chrono::seconds(2);
constexpr Duration kLongestWait = std::chrono::seconds(5);

}  // namespace

CoordinatorProcess::CoordinatorProcess(
    const LaunchOptions& options,
    const std::string& folder,
    std::string secret_file,
    int slot,
    Supervisor& supervisor)
    : options_(options),
      log_(folder + "/coordinator.db"),
      ready_file_(folder + "/coordinator.address"),
      secret_file_(std::move(secret_file)),
      slot_(slot),
      supervisor_(supervisor),
      status_(options.replicas->status),
      // Nothing is committed while it is away, and starting it costs little.
      backoff_(
          {.first = std::chrono::milliseconds(100),
           .longest = kLongestWait,
           .starts_at_zero = true}) {}

void CoordinatorProcess::begin(Instant now) {
  std::error_code ignored;
  std::filesystem::remove(ready_file_, ignored);  // An earlier run left it.
  started_ = now;
  failure_ = reserve_ports();
  failure_ = failure_.ok() ? start() : failure_;
  if (failure_.ok()) {
    state_ = State::kStarting;
    deadline_ = now + kPollInterval;
  }
}

Status CoordinatorProcess::reserve_ports() {
  const auto seed = static_cast<std::uint64_t>(::getpid());
  SHERD_ASSIGN_OR_RETURN(port_, reserve_port(seed));
  bind_ = str("127.0.0.1:", port_.port);
  if (!status_.ends_with(":0")) {
    return {};
  }
  SHERD_ASSIGN_OR_RETURN(status_port_, reserve_port(seed));
  status_.replace(status_.size() - 1, 1, str(status_port_.port));
  return {};
}

StartStatus CoordinatorProcess::start() {
  const ReplicaOptions& replicas = *options_.replicas;
  SupervisedProcessSpec setup;
  ProcessSpec& process = setup.process;
  setup.slot = slot_;
  setup.name = "the coordinator";
  const auto path = find_variable(options_.environment, "PATH");
  SHERD_RETURN_IF_FAILED(find_program(
      replicas.coordinator_command.front(), path.value_or("/usr/bin:/bin"),
      &process.path));
  process.command = replicas.coordinator_command;
  const auto add = [&](const std::vector<std::string>& words) {
    process.command.insert(process.command.end(), words.begin(), words.end());
  };
  add({"--bind", bind_, "--log", log_, "--ready-file", ready_file_});
  add({"--status", status_});
  add({"--replicas-min", str(replicas.replicas_min)});
  add({"--replicas-start", str(replicas.replicas)});
  add({"--samples-per-replica", str(replicas.samples_per_replica)});
  add({"--global-batch", str(replicas.global_batch)});
  add({"--samples-multiple", str(options_.ranks)});
  if (!secret_file_.empty()) {
    add({"--secret-file", secret_file_});
  }
  if (run_has_ended_) {
    add({"--run-has-ended"});
  }
  add(replicas.coordinator_arguments);
  process.environment = options_.environment;
  if (options_.output == RankOutput::kFiles) {
    setup.log = options_.log_dir + "/coordinator.log";
    setup.continues_log = !address_.empty();
  } else if (options_.output == RankOutput::kPrefixed) {
    setup.prefix = "[coordinator] ";
  }
  return supervisor_.start(std::move(setup));
}

void CoordinatorProcess::ended(const RankExit& end, Instant now) {
  const std::string how = how_ended(end);
  deadline_.reset();
  if (state_ == State::kEnding || state_ == State::kKilled) {
    state_ = State::kEnded;
  } else if (state_ == State::kStarting) {
    state_ = State::kEnded;
    failure_ = {
        end.failed() ? end.status() : 1,
        "the coordinator " + how + " before it listened"};
  } else {
    start_later(how, now, end.exit_code);
  }
}

void CoordinatorProcess::run_has_ended() {
  if (!std::exchange(run_has_ended_, true) && restarted_ &&
      state_ == State::kRunning) {
    supervisor_.signal(slot_, {SIGTERM, SignalTarget::kGroups, ""});
  }
}

void CoordinatorProcess::start_later(
    const std::string& why, Instant now, int exit_code) {
  if (now - started_ >= kHealthyAfter) {
    backoff_.reset();
  }
  const Duration wait = backoff_.next();
  if (exit_code == kWrongUsage && wait == kLongestWait) {
    state_ = State::kEnded;
    failure_ = {
        exit_code,
        str("the coordinator ", why, " each time that it was started again")};
    return;
  }
  supervisor_.say(
      str("the coordinator ", why, "; it is started again ", in_words(wait)));
  state_ = State::kWaiting;
  deadline_ = now + wait;
  if (wait == Duration(0)) {
    time_passed(now);
  }
}

void CoordinatorProcess::time_passed(Instant now) {
  if (!deadline_ || now < *deadline_) {
    return;
  }
  deadline_.reset();
  if (state_ == State::kStarting) {
    read_ready_file(now);
  } else if (state_ == State::kWaiting) {
    started_ = now;
    restarted_ = true;
    const StartStatus begun = start();
    if (begun.ok()) {
      state_ = State::kRunning;
    } else {
      start_later("could not be started: " + begun.message(), now);
    }
  } else if (state_ == State::kEnding) {
    supervisor_.signal(slot_, {SIGKILL, SignalTarget::kGroups, ""});
    state_ = State::kKilled;
    deadline_ = now + kKillTimeout;
  } else if (state_ == State::kKilled) {
    state_ = State::kEnded;
  }
}

// The file appears complete, with the coordinator's address and that of the status page.
void CoordinatorProcess::read_ready_file(Instant now) {
  std::ifstream in(ready_file_);
  if (in >> address_) {
    bind_ = address_;
    in >> status_;
    state_ = State::kRunning;
  } else if (now - started_ < kStartTimeout) {
    deadline_ = now + kPollInterval;
  } else {
    failure_ = {
        1,
        str("the coordinator did not listen within ", seconds(kStartTimeout),
            " s")};
  }
}

void CoordinatorProcess::end(Instant now) {
  if (state_ == State::kStarting || state_ == State::kRunning) {
    supervisor_.signal(slot_, {SIGTERM, SignalTarget::kGroups, ""});
    state_ = State::kEnding;
    deadline_ = now + kStopTimeout;
  } else if (state_ == State::kWaiting) {
    state_ = State::kEnded;
    deadline_.reset();
  }
}

}  // namespace sherd::launch
