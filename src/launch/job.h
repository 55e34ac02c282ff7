// SPDX-License-Identifier: Apache-2.0
//
// Job is one run of the launcher: it owns the ranks' processes and pipes, and
// carries out what StopPolicy decides in a loop around one poll(). Thread rule:
// one thread, the only one of the process.
#pragma once

#include <memory>
#include <string>
#include <vector>
#include <sherd/launch/launch.h>
#include "base/clock.h"
#include "base/status.h"
#include "base/descriptor.h"
#include "launch/lines.h"
#include "launch/rank_output.h"
#include "launch/rank_process.h"
#include "launch/signals.h"
#include "launch/sink.h"
#include "launch/stop_policy.h"

namespace sherd::launch {

class Job {
 public:
  // Both outlive the job. REQUIRES: descriptors 0, 1 and 2 are open.
  Job(const LaunchOptions& options, const Clock& clock);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // To the end; returns the exit status. Call once.
  int run();

 private:
  struct Rank {
    RankProcess process;
    std::vector<RankStream> streams;
    // On the heap: streams point to it while ranks move in their vector.
    std::unique_ptr<LastLines> last;
  };
  // What one rank's setup leaves in the launcher's hands.
  struct Channels {
    Descriptor to_close_after_start[3];
    std::vector<RankStream> streams;
  };

  // 0, or the exit status when ranks could not be started and none is left.
  int start_all();
  int start_ranks(const std::string& path, int port);
  Status prepare_logs();
  Result<int> choose_port() const;
  StartFailure start_one(RankSetup setup);
  Result<Channels> open_channels(RankSetup* setup, LastLines* last);
  Status open_pipe(
      int* child_fd, Descriptor* child_end, Sink* to, const RankSetup& setup,
      LastLines* last, std::vector<RankStream>* streams);
  int give_up_start(const StartFailure& failure);

  void watch();
  void poll_once();
  int poll_timeout_ms() const;
  void handle_signals();
  void reap_ended();
  void carry_out(const std::optional<Order>& order);
  bool output_pending() const;

  void report();
  void report_last_lines(int rank);
  void say(const std::string& sentence);
  void say_error(const std::string& sentence);
  std::string log_path(int rank) const;
  Sink& error_sink() { return one_sink_ ? stdout_ : stderr_; }

  const LaunchOptions& options_;
  const Clock& clock_;
  const bool one_sink_;  // stdout and stderr are one file: keep their order.
  Sink stdout_;
  Sink stderr_;
  Descriptor nothing_;  // /dev/null, the ranks' stdin.
  SignalScope signals_;
  StopPolicy policy_;
  std::vector<Rank> ranks_;  // Index is the rank.
};

}  // namespace sherd::launch
