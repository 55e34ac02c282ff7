// SPDX-License-Identifier: Apache-2.0
#include "launch/job.h"

#include <fcntl.h>
#include <unistd.h>
#include <csignal>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/status.h"
#include "launch/control.h"
#include "launch/coordinator_process.h"
#include "launch/job_folder.h"
#include "launch/port.h"
#include "launch/rank_variables.h"
#include "launch/restart_policy.h"
#include "launch/start_plan.h"
#include "launch/supervisor.h"

namespace sherd::launch {
namespace {

// The samples of a step in which all replicas take part.
std::int64_t full_samples(const ReplicaOptions& replicas) {
  return replicas.global_batch > 0
      ? replicas.global_batch
      : replicas.samples_per_replica * replicas.replicas;
}

class ReplicaJob {
 public:
  explicit ReplicaJob(const LaunchOptions& options)
      : options_(options),
        replicas_(*options.replicas),
        supervisor_(clock_),
        policy_(
            {.replicas = replicas_.replicas,
             .spares = replicas_.spares,
             .ranks = options.ranks,
             .restarts_max = replicas_.restarts_max,
             .restart_window = replicas_.restart_window,
             .stop_grace = options.stop_grace}),
        secret_file_(options.replicas->secret_file) {}

  int run();

 private:
  StartStatus prepare();
  Status prepare_coordinator();
  StartStatus wait_for_coordinator();
  void end_without_coordinator();
  // Waits for events and handles them.
  void step();
  void ended(const std::vector<RankExit>& ends);
  void serve_control_requests();
  Result<GroupActions> act_on_request(const std::string& text);
  // Returns the last failure to start a group.
  StartStatus carry_out(GroupActions actions);
  // Returns the further actions, after a failure, which is kept in `last`, and for signals that
  // arrived meanwhile.
  GroupActions start_or_report(const GroupAction& action, StartStatus* last);
  StartStatus start_group(const GroupAction& action);
  StartStatus start_rank_of(const GroupAction& action, int rank, int port);
  void promote(const GroupAction& action);
  void signal_group(const GroupAction& action) const;
  Result<int> choose_port(int group);
  std::optional<Instant> deadline() const;
  void report();

  int ranks() const { return options_.ranks; }
  int slot_of(int group, int rank) const { return group * ranks() + rank; }

  const LaunchOptions& options_;
  const ReplicaOptions& replicas_;
  const SteadyClock clock_;
  Supervisor supervisor_;  // Slots: slot_of(), then the coordinator.
  RestartPolicy policy_;
  StartPlan plan_;
  std::optional<JobFolder> folder_;  // Where the coordinator keeps its log.
  std::string secret_file_;          // Empty if there is none.
  // Nullopt if it runs elsewhere.
  std::optional<CoordinatorProcess> coordinator_;
  bool ends_without_coordinator_ = false;
  std::optional<ControlSocket> control_;
  std::map<int, ReservedPort> ports_;  // Keyed by group.
  std::uint64_t ports_tried_ = 0;
  std::map<int, Descriptor> spare_ends_;  // Keyed by slot: pipes to spares.
  std::set<std::string> logs_;            // Logs that this run has begun.
};

int ReplicaJob::run() {
  StartStatus ready = prepare();
  if (ready.ok() && coordinator_) {
    ready = wait_for_coordinator();
  }
  if (!ready.ok()) {
    return supervisor_.give_up(ready);
  }
  carry_out(policy_.begin(clock_.now()));
  while (!policy_.finished()) {
    step();
    end_without_coordinator();
  }
  if (coordinator_) {
    // It ends after the replicas, since they report that they leave.
    coordinator_->end(clock_.now());
    while (coordinator_->runs()) {
      step();
    }
  }
  supervisor_.end_orphans();
  supervisor_.flush();
  report();
  supervisor_.flush();
  return supervisor_.exit_status(
      ends_without_coordinator_ ? coordinator_->failure().exit_status()
                                : policy_.exit_status());
}

StartStatus ReplicaJob::prepare() {
  SHERD_RETURN_IF_FAILED(plan_start(options_, &plan_));
  if (options_.output == RankOutput::kFiles) {
    supervisor_.say(
        str("the output of the ranks goes to ", options_.log_dir,
            "/r0.0.log and so on"));
  }
  if (replicas_.coordinator.empty()) {
    SHERD_RETURN_IF_FAILED(prepare_coordinator());
  }
  // The socket is often in that folder.
  if (!replicas_.control.empty()) {
    SHERD_ASSIGN_OR_RETURN(
        ControlSocket control, ControlSocket::open(replicas_.control));
    control_.emplace(std::move(control));
  }
  return {};
}

Status ReplicaJob::prepare_coordinator() {
  const std::string temporary =
      find_variable(options_.environment, "TMPDIR").value_or("");
  SHERD_ASSIGN_OR_RETURN(
      JobFolder folder,
      replicas_.run_folder.empty()
          ? JobFolder::make_temporary(temporary.empty() ? "/tmp" : temporary)
          : JobFolder::open(replicas_.run_folder));
  folder_.emplace(std::move(folder));
  if (secret_file_.empty() && replicas_.makes_secret) {
    SHERD_ASSIGN_OR_RETURN(secret_file_, folder_->make_secret());
  }
  coordinator_.emplace(
      options_, folder_->path(), secret_file_,
      slot_of(replicas_.replicas + replicas_.spares, 0), supervisor_);
  return {};
}

StartStatus ReplicaJob::wait_for_coordinator() {
  coordinator_->begin(clock_.now());
  while (coordinator_->failure().ok() && coordinator_->address().empty() &&
         policy_.stop_signal() == 0 && !policy_.all_left()) {
    step();
  }
  return coordinator_->failure();
}

// Replicas cannot make a step any more, but they can save what they have.
void ReplicaJob::end_without_coordinator() {
  if (coordinator_ && !coordinator_->failure().ok() &&
      policy_.stop_signal() == 0) {
    ends_without_coordinator_ = true;
    supervisor_.say(
        coordinator_->failure().message() + "; replicas are told to end");
    carry_out(policy_.signal_received(SIGTERM, clock_.now()));
  }
}

void ReplicaJob::step() {
  const Supervisor::Events events =
      supervisor_.poll_once(deadline(), control_ ? control_->fd() : -1);
  for (const int signal : events.signals) {
    carry_out(policy_.signal_received(signal, clock_.now()));
  }
  ended(events.ends);
  if (events.readable) {
    serve_control_requests();
  }
  carry_out(policy_.time_passed(clock_.now()));
  if (coordinator_) {
    coordinator_->time_passed(clock_.now());
  }
}

void ReplicaJob::ended(const std::vector<RankExit>& ends) {
  std::vector<RankExit> of_groups;
  for (RankExit end : ends) {
    end.group = end.rank / ranks();
    if (end.group == replicas_.replicas + replicas_.spares) {
      coordinator_->ended(end, clock_.now());
      continue;
    }
    spare_ends_.erase(end.rank);
    end.rank %= ranks();
    of_groups.push_back(std::move(end));
  }
  if (!of_groups.empty()) {
    carry_out(policy_.ranks_ended(of_groups, clock_.now()));
  }
  if (coordinator_ && policy_.some_are_done()) {
    coordinator_->run_has_ended();
  }
}

void ReplicaJob::serve_control_requests() {
  while (const auto request = control_->receive()) {
    Result<GroupActions> actions = act_on_request(request->text);
    if (!actions.ok()) {
      control_->reply(*request, "error " + actions.status().message());
      continue;
    }
    const std::string reason = actions.value().front().reason;
    const StartStatus started = carry_out(std::move(actions).value());
    control_->reply(
        *request,
        started.ok() ? "ok " + reason
                     : "error " + reason +
                ", but could not be started: " + started.message());
  }
}

Result<GroupActions> ReplicaJob::act_on_request(const std::string& text) {
  SHERD_ASSIGN_OR_RETURN(
      const ControlRequest asked, parse_control_request(text));
  const auto [what, replica] = asked;
  return what == ControlRequest::What::kDrain
      ? policy_.drain(replica, clock_.now())
      : policy_.admit(replica, clock_.now());
}

StartStatus ReplicaJob::carry_out(GroupActions actions) {
  StartStatus last;
  // Actions that follow from a failed start come after the others.
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const GroupAction action = std::move(actions[i]);
    if (!action.reason.empty()) {
      supervisor_.say(action.reason);
    }
    if (action.what == GroupAction::What::kSignal) {
      signal_group(action);
    } else if (action.what == GroupAction::What::kPromote) {
      promote(action);
    } else if (action.what == GroupAction::What::kStart) {
      const GroupActions more = start_or_report(action, &last);
      actions.insert(actions.end(), more.begin(), more.end());
    }
  }
  return last;
}

// With many replicas a start takes long enough for an operator to change their mind.
GroupActions ReplicaJob::start_or_report(
    const GroupAction& action, StartStatus* last) {
  GroupActions more;
  const StartStatus started = policy_.stop_signal() != 0
      ? StartStatus(1, "the job is ending")
      : start_group(action);
  if (!started.ok()) {
    *last = started;
    more = policy_.start_failed(
        action.group, started.exit_status(), started.message(), clock_.now());
  }
  for (const int signal : supervisor_.take_signals()) {
    const GroupActions of_signal =
        policy_.signal_received(signal, clock_.now());
    more.insert(more.end(), of_signal.begin(), of_signal.end());
  }
  return more;
}

// Starts all of its ranks or none.
StartStatus ReplicaJob::start_group(const GroupAction& action) {
  SHERD_ASSIGN_OR_RETURN(const int port, choose_port(action.group));
  for (int rank = 0; rank < ranks(); ++rank) {
    StartStatus started = start_rank_of(action, rank, port);
    if (!started.ok()) {
      std::vector<int> slots;
      for (int before = 0; before < rank; ++before) {
        slots.push_back(slot_of(action.group, before));
        spare_ends_.erase(slots.back());
      }
      supervisor_.kill_and_reap(slots);
      return started;
    }
  }
  return {};
}

StartStatus ReplicaJob::start_rank_of(
    const GroupAction& action, int rank, int port) {
  Descriptor told;  // Where a spare reads which replica it becomes.
  Descriptor spare_end;
  const int slot = slot_of(action.group, rank);
  if (!action.replica) {
    int ends[2] = {-1, -1};
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      return cannot("start a spare");
    }
    told = Descriptor(ends[0]);
    spare_end = Descriptor(ends[1]);
  }
  const RankVariables place = {
      .rank = rank,
      .ranks = ranks(),
      .port = port,
      .threads = plan_.threads,
      .of_replica = ReplicaVariables{
          .coordinator =
              coordinator_ ? coordinator_->address() : replicas_.coordinator,
          .replica = action.replica,
          .replicas = replicas_.replicas,
          .samples = coordinator_ ? full_samples(replicas_) : 0,
          .secret_file = secret_file_,
          .keeps_secret = !coordinator_ && replicas_.makes_secret,
          .timeouts = replicas_.timeouts,
          .spare = action.group,
          .spare_fd = told.get()}};
  const std::string name = action.replica ? str("r", *action.replica, ".", rank)
                                          : str("s", action.group, ".", rank);
  SupervisedProcessSpec setup =
      rank_process_spec(options_, plan_, place, slot, name);
  setup.process.inherited_fd = told.get();
  if (options_.output == RankOutput::kFiles) {
    setup.log = str(options_.log_dir, "/", name, ".log");
    setup.continues_log = !logs_.insert(setup.log).second;
  }
  SHERD_RETURN_IF_FAILED(supervisor_.start(std::move(setup)));
  if (spare_end.open()) {
    spare_ends_[slot] = std::move(spare_end);
  }
  return {};
}

void ReplicaJob::promote(const GroupAction& action) {
  for (int rank = 0; rank < ranks(); ++rank) {
    const int slot = slot_of(action.group, rank);
    const auto end = spare_ends_.find(slot);
    if (end == spare_ends_.end()) {
      continue;  // The rank has ended; the policy will learn it next.
    }
    // A few bytes into an empty pipe: this never blocks.
    const std::string line = str(*action.replica, "\n");
    [[maybe_unused]] const auto written =
        ::write(end->second.get(), line.data(), line.size());
    spare_ends_.erase(end);
    if (options_.output == RankOutput::kPrefixed) {
      supervisor_.rename(slot, str("[r", *action.replica, ".", rank, "] "));
    }
  }
}

void ReplicaJob::signal_group(const GroupAction& action) const {
  const bool first = action.signal.to == SignalTarget::kFirstRank;
  for (int rank = 0; rank < (first ? 1 : ranks()); ++rank) {
    supervisor_.signal(slot_of(action.group, rank), action.signal);
  }
}

Result<int> ReplicaJob::choose_port(int group) {
  SHERD_ASSIGN_OR_RETURN(
      ports_[group],
      reserve_port(
          (static_cast<std::uint64_t>(::getpid()) << 32U) + ports_tried_++));
  return ports_[group].port;
}

std::optional<Instant> ReplicaJob::deadline() const {
  return coordinator_ ? earlier(policy_.deadline(), coordinator_->deadline())
                      : policy_.deadline();
}

void ReplicaJob::report() {
  supervisor_.report_problems();
  if (ends_without_coordinator_) {
    supervisor_.say_error(coordinator_->failure().message());
    supervisor_.report_output_tail(
        slot_of(replicas_.replicas + replicas_.spares, 0));
    return;
  }
  if (policy_.stop_signal() != 0 || policy_.exit_status() == 0) {
    return;
  }
  if (policy_.all_left()) {
    supervisor_.say(
        str("all replicas have left before one said that the run has ended; "
            "the exit status is ",
            kAllLeft,
            replicas_.run_folder.empty()
                ? ""
                : ", and the same command continues the run"));
    return;
  }
  const RestartPolicy::Failure& failure = policy_.last_failure().value();
  supervisor_.say_error(
      failure.what + "; no replica is left that could be started again");
  if (failure.rank) {
    supervisor_.report_output_tail(slot_of(failure.group, *failure.rank));
  }
}

}  // namespace

int run_replica_job(const LaunchOptions& options) {
  return ReplicaJob(options).run();
}

}  // namespace sherd::launch
