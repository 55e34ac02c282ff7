// SPDX-License-Identifier: Apache-2.0
//
// ContenderJob is one of the programs that `sherd bench` compares: W ranks under a `sherd run` of
// their own, driven through rank 0 by the lines of contender_protocol.h. Between two calls its
// ranks sleep in a read or a receive. They end when this process ends, however that happens. Thread
// rule: one thread, the only one of the process.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include "base/descriptor.h"
#include "base/process.h"
#include "base/signal_fd.h"
#include "bench/contender_protocol.h"

namespace sherd::bench {

// A busy machine may take this long to start every rank, to run a block, and to end.
inline constexpr std::chrono::seconds kReadyDeadline(300);
inline constexpr std::chrono::seconds kBlockDeadline(600);
inline constexpr std::chrono::seconds kEndDeadline(60);
// How long `sherd run` gives its ranks after SIGTERM.
inline constexpr const char* kGraceSeconds = "5";

// What an Error says of a job's output: how it ends.
std::string last_lines_of(std::string output);

// A signal asked this process to end.
struct Interrupted {
  int signal = 0;
};

// Throws Interrupted if a signal has arrived.
void stop_if_interrupted(const SignalFd& signals);

class ContenderJob {
 public:
  struct Spec {
    std::string name;
    std::string sherd;  // The program `sherd`.
    int ranks = 1;
    std::vector<std::string> command;  // The command of one rank.
    // The complete environment, "NAME=value" each.
    std::vector<std::string> environment;
  };

  // Starts the ranks and does not wait for them. `signals` must outlive this object. Throws Error
  // if the system has no process or memory left.
  ContenderJob(const Spec& setup, const SignalFd& signals);
  // Kills processes that neither end() nor stop() has ended.
  ~ContenderJob();
  ContenderJob(const ContenderJob&) = delete;
  ContenderJob& operator=(const ContenderJob&) = delete;

  // These two throw Error with the contender's last lines if it ended, gave another answer or did
  // not answer in time; and Interrupted.
  ReadyReply wait_until_ready(std::chrono::seconds deadline);
  // `while_waiting`, unless it is empty, is called every few milliseconds.
  StepsReply run(
      int steps,
      std::chrono::seconds deadline,
      const std::function<void()>& while_waiting = nullptr);

  // After a failure: tells `sherd run` to end its ranks, or kills it if it has not done so after
  // `deadline`. Both do nothing once it has ended, and never throw.
  void tell_to_stop() const noexcept;
  void stop(std::chrono::seconds deadline) noexcept;

  // Asks the ranks to end and waits. Throws Error if they do not, or not in order.
  void end(std::chrono::seconds deadline);

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  ContenderJob(std::string name, const SignalFd& signals);
  void start(const Spec& setup);
  // 0 steps end it.
  void send(int steps);
  // The next line of the protocol.
  std::string answer(
      Deadline deadline, const std::function<void()>& while_waiting);
  bool read_more();  // Returns false at the end of output.
  // Whether the end came in time.
  bool wait_for_end_of_output(std::chrono::seconds deadline);
  [[noreturn]] void fail(const std::string& what);
  int reap();  // Waits, and returns the exit status.

  const std::string name_;
  const SignalFd& signals_;
  std::optional<ChildProcess> process_;  // The process of `sherd run`.
  Descriptor to_;
  Descriptor from_;
  Descriptor errors_;  // A file in memory, which nobody has to read in time.
  std::string unread_;
};

}  // namespace sherd::bench
