// SPDX-License-Identifier: Apache-2.0
//
// CoordinatorProcess keeps the coordinator of a fault-tolerant job running: a child that starts
// before the replicas and ends after them, and that is restarted on the same log and the same ports
// whenever it dies. The ports are reserved for it, so that nobody takes them while it is down. A
// coordinator that has never listened is not restarted: its options or its log must be wrong. Nor
// is one that refuses its command line again and again: the job's folder is gone.
// Thread rule: one thread.
#pragma once

#include <optional>
#include <string>
#include <sherd/launch/launch.h>
#include "base/backoff.h"
#include "base/clock.h"
#include "launch/port.h"
#include "launch/supervisor.h"

namespace sherd::launch {

class CoordinatorProcess {
 public:
  // Keeps its log in `folder`. `secret_file` is empty if there is none. The references must outlive
  // it.
  CoordinatorProcess(
      const LaunchOptions& options,
      const std::string& folder,
      std::string secret_file,
      int slot,
      Supervisor& supervisor);

  void begin(Instant now);
  // REQUIRES: `end` belongs to its slot.
  void ended(const RankExit& end, Instant now);
  void time_passed(Instant now);
  // A replica is done, which the log does not say: later starts do. A coordinator that was itself
  // started again may not know why the replica has gone, so it is ended once to hear of it.
  void run_has_ended();
  std::optional<Instant> deadline() const { return deadline_; }
  // Asks it to end. After two seconds it is killed, or given up if a hanging disk blocks it.
  void end(Instant now);

  // host:port; empty until it has listened for the first time.
  const std::string& address() const { return address_; }
  // A failure if it never listened, or is not started again.
  const StartStatus& failure() const { return failure_; }
  bool runs() const {
    return state_ == State::kStarting || state_ == State::kRunning ||
        state_ == State::kEnding || state_ == State::kKilled;
  }

 private:
  // kStarting: until it listens for the first time. kWaiting: before a restart.
  enum class State { kStarting, kRunning, kWaiting, kEnding, kKilled, kEnded };

  Status reserve_ports();
  StartStatus start();
  void read_ready_file(Instant now);
  void start_later(const std::string& why, Instant now, int exit_code = 0);

  const LaunchOptions& options_;
  const std::string log_;
  const std::string ready_file_;
  const std::string secret_file_;
  const int slot_;
  Supervisor& supervisor_;
  State state_ = State::kEnded;
  ReservedPort port_;
  ReservedPort status_port_;
  std::string bind_;    // Where it is to listen.
  std::string status_;  // The address of its status page.
  Backoff backoff_;
  bool run_has_ended_ = false;
  bool restarted_ = false;
  Instant started_{};
  std::optional<Instant> deadline_;
  std::string address_;  // Where it listens.
  StartStatus failure_;
};

}  // namespace sherd::launch
