// SPDX-License-Identifier: Apache-2.0
#include "launch/job.h"

#include <unistd.h>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "base/check.h"
#include "base/clock.h"
#include "base/status.h"
#include "launch/port.h"
#include "launch/rank_variables.h"
#include "launch/start_plan.h"
#include "launch/stop_policy.h"
#include "launch/supervisor.h"

namespace sherd::launch {
namespace {

// What ranks do when one fails, see RankEnvironment.
bool ranks_write_records(const LaunchOptions& options) {
  return !find_variable(options.environment, "SHERD_FLIGHT_DIR")
              .value_or("")
              .empty();
}

class Job {
 public:
  explicit Job(const LaunchOptions& options)
      : options_(options),
        supervisor_(clock_),
        policy_(
            {.ranks = options.ranks,
             .cause_grace = options.cause_grace,
             .record_grace = ranks_write_records(options) ? options.record_grace
                                                          : Duration(0),
             .stop_grace = options.stop_grace}) {}

  int run();

 private:
  // Starts all ranks.
  StartStatus start_all();
  StartStatus start_ranks(const StartPlan& plan, int port);
  void say_where_output_goes();
  Result<int> choose_port();
  void watch();
  void carry_out(const std::optional<SignalRequest>& action);
  void report();
  std::string log_path(int rank) const;

  const LaunchOptions& options_;
  const SteadyClock clock_;
  ReservedPort port_;      // Used if no port was requested.
  Supervisor supervisor_;  // A rank's slot is its number.
  StopPolicy policy_;
  std::vector<int> early_signals_;  // They arrived while ranks were started.
};

int Job::run() {
  if (const StartStatus started = start_all(); !started.ok()) {
    return supervisor_.give_up(started);
  }
  watch();
  supervisor_.end_orphans();
  supervisor_.flush();
  report();
  supervisor_.flush();
  return supervisor_.exit_status(policy_.exit_status());
}

StartStatus Job::start_all() {
  StartPlan plan;
  SHERD_RETURN_IF_FAILED(plan_start(options_, &plan));
  if (options_.output == RankOutput::kFiles) {
    say_where_output_goes();
  }
  SHERD_ASSIGN_OR_RETURN(const int port, choose_port());
  return start_ranks(plan, port);
}

StartStatus Job::start_ranks(const StartPlan& plan, int port) {
  RankVariables place = {
      .ranks = options_.ranks,
      .fake_hosts = options_.fake_hosts,
      .port = port,
      .threads = plan.threads};
  for (; place.rank < place.ranks; ++place.rank) {
    for (const int signal : supervisor_.take_signals()) {
      if (signal != SIGUSR1 && signal != SIGUSR2) {
        return {
            128 + signal,
            str(describe_signal(signal), " came while ranks were started: ",
                place.rank, " of ", place.ranks)};
      }
      early_signals_.push_back(signal);
    }
    SupervisedProcessSpec setup = rank_process_spec(
        options_, plan, place, place.rank, str("rank ", place.rank));
    setup.reads_stdin = place.rank == 0;
    setup.owns_stdout = place.rank == 0 && options_.rank0_owns_stdout;
    if (options_.output == RankOutput::kFiles) {
      setup.log = log_path(place.rank);
    }
    SHERD_RETURN_IF_FAILED(supervisor_.start(std::move(setup)));
  }
  return {};
}

void Job::say_where_output_goes() {
  supervisor_.say(
      options_.ranks == 1 ? "the output of rank 0 goes to " + log_path(0)
                          : "the output of the ranks goes to " + log_path(0) +
              " ... " + log_path(options_.ranks - 1));
}

Result<int> Job::choose_port() {
  if (options_.port == 0) {
    SHERD_ASSIGN_OR_RETURN(
        port_, reserve_port(static_cast<std::uint64_t>(::getpid())));
    return port_.port;
  }
  SHERD_RETURN_IF_FAILED(check_port_free(options_.port));
  return options_.port;
}

void Job::watch() {
  for (const int signal : early_signals_) {
    carry_out(policy_.signal_received(signal, clock_.now()));
  }
  while (!policy_.finished()) {
    const Supervisor::Events events = supervisor_.poll_once(policy_.deadline());
    for (const int signal : events.signals) {
      carry_out(policy_.signal_received(signal, clock_.now()));
    }
    if (!events.ends.empty()) {
      carry_out(policy_.ranks_ended(events.ends, clock_.now()));
    }
    carry_out(policy_.time_passed(clock_.now()));
  }
}

void Job::carry_out(const std::optional<SignalRequest>& action) {
  if (!action) {
    return;
  }
  supervisor_.say(action->reason);
  for (int rank = 0; rank < options_.ranks; ++rank) {
    supervisor_.signal(rank, *action);
  }
}

void Job::report() {
  supervisor_.report_problems();
  const std::optional<RankExit> first = policy_.first_failure();
  if (!first) {
    return;
  }
  const int cause = first->blames.value_or(first->rank);
  const bool other = cause != first->rank && cause < options_.ranks;
  const std::string when = policy_.stop_signal() != 0
      ? " after it was told to end"
      : other              ? str(" because of rank ", cause)
      : options_.ranks > 1 ? " and was the first to fail"
                           : "";
  supervisor_.say_error(
      describe(*first) + when + hint_of(*first) +
      same_error_of(*first, policy_.failures()));
  if (other) {
    supervisor_.report_output_tail(cause);
  }
  supervisor_.report_output_tail(first->rank);
}

std::string Job::log_path(int rank) const {
  return str(options_.log_dir, "/rank-", rank, ".log");
}

}  // namespace

int run_plain_job(const LaunchOptions& options) { return Job(options).run(); }

}  // namespace sherd::launch
