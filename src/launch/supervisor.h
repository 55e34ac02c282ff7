// SPDX-License-Identifier: Apache-2.0
//
// Supervisor is the event loop of a launcher's job: it owns the child processes, forwards their
// output to the user, takes signals, and waits for all of them in one poll(). Its callers decide
// what to start and signal. A child is known by its slot, a number that another child may take
// when it has ended. Thread rule: one thread, the only one of the process.
#pragma once

#include <array>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/process.h"
#include "base/signal_fd.h"
#include "base/status.h"
#include "launch/line_writer.h"
#include "launch/orphans.h"
#include "launch/output_forwarder.h"
#include "launch/program.h"
#include "launch/stop_policy.h"

namespace sherd::launch {

struct SupervisedProcessSpec {
  int slot = 0;
  std::string name;     // For messages: "rank 3".
  ProcessSpec process;  // Its streams are set by start().
  // Precedes each line of its output.
  std::string prefix;
  // The file that gets the output instead; empty if there is none.
  std::string log;
  // Appends to an existing log instead of replacing it.
  bool continues_log = false;
  bool reads_stdin = false;
  // Writes to the launcher's own stdout.
  bool owns_stdout = false;
};

class Supervisor {
 public:
  // `clock` must outlive it. REQUIRES: descriptors 0, 1 and 2 are open.
  explicit Supervisor(const Clock& clock);
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // REQUIRES: no process runs in its slot.
  StartStatus start(SupervisedProcessSpec setup);
  // Lines that the child writes from now on begin with `prefix`.
  void rename(int slot, const std::string& prefix);

  struct Events {
    std::vector<int> signals;
    std::vector<RankExit> ends;  // `rank` is the slot.
    bool readable = false;       // Whether `also_fd` is readable.
  };
  // Waits for something to happen, at most until `deadline`, and forwards output. `also_fd` is
  // polled, too; -1 stands for none.
  Events poll_once(const std::optional<Instant>& deadline, int also_fd = -1);
  // The signals that have arrived meanwhile; does not wait.
  std::vector<int> take_signals();
  // Ends processes that ended ranks have left behind.
  void end_orphans();
  // Runs until all output has been forwarded, or until a signal says that nobody wants it.
  void flush();

  // These do nothing for a slot without a process.
  void signal(int slot, const SignalRequest& action) const;
  // Waits as long as a job does for processes that it has killed. Those that hang are reported.
  void kill_and_reap(const std::vector<int>& slots);
  // Ends all running processes, says why the job cannot begin, and returns its exit status.
  int give_up(const StartStatus& failure);

  // Prints to the user, on stderr.
  void say(const std::string& sentence);
  void say_error(const std::string& sentence);
  void report_output_tail(int slot);
  // Reports problems of the launcher itself: processes that outlive SIGKILL, and output that could
  // not be written.
  void report_problems();
  // The launcher's exit status: that of the job, unless the job has succeeded and output was lost
  // for another reason than that its reader has gone.
  int exit_status(int of_job) const;

 private:
  struct Child {
    ChildProcess process;
    std::string name;
    std::string log;
    std::string mark;  // Set in its environment; see Orphans.
    std::vector<OutputForwarder> streams;
    // On the heap, because streams point to it while children move.
    std::unique_ptr<OutputTail> last;
  };
  // The child's ends of its streams, to be closed when it has started.
  using ChildEnds = std::array<Descriptor, 3>;

  Result<ChildEnds> open_streams(SupervisedProcessSpec* setup, Child* child);
  void say_hangs(pid_t pid);
  static OutputTail output_tail(const Child& child);
  std::vector<RankExit> reap_ended();
  std::set<pid_t> own_processes() const;
  void sweep_orphans();
  bool output_pending() const { return stdout_.pending() || stderr_.pending(); }
  LineWriter& error_sink() { return one_sink_ ? stdout_ : stderr_; }

  const Clock& clock_;
  // Whether stdout and stderr are one file, so that their order must be kept.
  const bool one_sink_;
  LineWriter stdout_;
  LineWriter stderr_;
  Descriptor nothing_;  // /dev/null, the stdin of children.
  SignalFd signals_{SIGINT,  SIGQUIT, SIGTERM, SIGHUP,
                    SIGUSR1, SIGUSR2, SIGCHLD};
  Orphans orphans_;
  // Set while some are left: when to look for them next, and until when.
  std::optional<Instant> sweep_at_;
  Instant sweep_until_{};
  // Keyed by slot; ended ones stay for the report.
  std::map<int, Child> children_;
};

}  // namespace sherd::launch
