// SPDX-License-Identifier: Apache-2.0
//
// A SimulatedWorld is a fault-tolerant run in simulated time. The coordinator and the replicas are
// the real state machines of ft/protocol, and silent replicas are found by the real failure
// detector; what carries their messages, the disk under the log, the connections between replicas
// and the training itself are modelled by how long they take. Ranks within a replica exist only as
// costs. Faults come in through the methods; randomness has no place here, so that a world is a
// function of its options and of the faults. docs/design/simulate.md. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include "base/clock.h"
#include "ft/coordinator/failure_detector.h"
#include "ft/protocol/coordinator.h"
#include "ft/protocol/replica.h"
#include "sim/event_queue.h"
#include "sim/traffic.h"

namespace sherd::sim {

// How long each part takes. docs/design/simulate.md says where the defaults come from.
struct WorldTimes {
  // A step without faults, from one commit to the next.
  Duration step = std::chrono::seconds(20);
  // From a leader to the coordinator, or back.
  Duration message = std::chrono::microseconds(50);
  // Until a record of the log is on the disk.
  Duration sync = std::chrono::microseconds(93);
  // From a leader to all ranks of its replica, or back.
  Duration leader_fan_out = Duration(0);
  // Until all members of an epoch are connected.
  Duration connect = std::chrono::milliseconds(50);
  // A reduction that no computation hides.
  Duration reduce = Duration(0);
  // Until a restarted replica has copied the state of another one.
  Duration fetch = std::chrono::milliseconds(1);
  // From the end of a process until its connections are closed.
  Duration end_of_connection = std::chrono::milliseconds(1);
  // Between two attempts of a replica to reach the coordinator.
  Duration reconnect = std::chrono::milliseconds(50);
};

// What lies between two steps: the last rank has computed, its leader votes, the commit is written
// and sent, ranks apply it and get the next step.
Duration step_overhead_of(const WorldTimes& times);

struct SimulatedWorldOptions {
  // ---- behaviour ----

  int replicas = 1;
  int ranks_per_replica = 1;
  WorldTimes times;
  ft::CoordinatorOptions coordinator;

  // ---- performance ----

  // Simulates each step by itself. Otherwise steps that nothing can disturb are simulated as one,
  // which takes as long as all of them and counts as all of them.
  bool every_step = false;
};

// What fails, and how others notice it.
enum class FailureKind {
  kProcess,  // A replica's processes end, and their connections are closed.
  kHost,     // Its host is gone: nothing is closed, and it sends nothing more.
  kHang,     // It computes forever, and reports that.
  kLink,     // A connection between two replicas breaks; none is lost.
};

class SimulatedWorld {
 public:
  explicit SimulatedWorld(const SimulatedWorldOptions& options);
  ~SimulatedWorld();
  SimulatedWorld(const SimulatedWorld&) = delete;
  SimulatedWorld& operator=(const SimulatedWorld&) = delete;

  EventQueue& events() { return events_; }
  Instant now() const { return events_.now(); }
  // Runs all events before that time.
  void run_until(Instant end);

  // ---- callbacks ----

  // Called after each event: to check what must always hold.
  void set_after_event(std::function<void(const SimulatedWorld&)> call) {
    after_event_ = std::move(call);
  }
  // Called for each record as soon as it is decided, before it is on disk.
  void set_on_record(std::function<void(const ft::Record&)> call) {
    on_record_ = std::move(call);
  }
  // Called for each record that is on disk from now on; log() does not have it yet. A record
  // decided before the coordinator was killed may never come here.
  void set_on_written(std::function<void(const ft::Record&)> call) {
    on_written_ = std::move(call);
  }
  // A message between a replica and the coordinator that is about to be sent.
  struct Envelope {
    bool to_coordinator = false;
    ft::ReplicaId replica = 0;
  };
  // Decides about each message: it arrives once after each of the returned times, which are added
  // to the usual one. If there are none, it is lost.
  void set_delivery(
      std::function<std::vector<Duration>(const Envelope&)> call) {
    delivery_ = std::move(call);
  }

  // ---- faults and their ends ----

  // The state that training begins with.
  static ft::StateId first_state();
  // Starts a replica; without `held` it has nothing that counts, like a new one. REQUIRES: it does
  // not run.
  void start(ft::ReplicaId replica, std::optional<ft::StateId> held = {});
  // The coordinator notices the loss after `noticed_after`, however the replica is lost. REQUIRES:
  // it runs, and `kind` is not kLink.
  void lose(
      ft::ReplicaId replica,
      FailureKind kind,
      std::optional<Duration> noticed_after = {});
  // The replica finishes its step and is then no longer a member. It runs until it is lost.
  void leave(ft::ReplicaId replica);
  // A connection between two replicas fails once; both continue.
  void reset_link(ft::ReplicaId one, ft::ReplicaId other);
  // Nothing passes between these two until the link is mended.
  void cut_link(ft::ReplicaId one, ft::ReplicaId other);
  void mend_link(ft::ReplicaId one, ft::ReplicaId other);
  // The replica sends its report again, as with each heartbeat, so that lost messages are repeated.
  // Unless messages are lost, this is not needed.
  void repeat_report(ft::ReplicaId replica);
  // Its connection to the coordinator ends; both continue, and it reconnects.
  void reset_connection(ft::ReplicaId replica);
  // The coordinator is killed, and restarted with its log after that time.
  void lose_coordinator(Duration away);
  // The same, with an empty log.
  void lose_coordinator_and_log(Duration away);
  // All computing and reducing stands still for this long from now on; if it already stands still,
  // until the later of both ends.
  void stall(Duration time);
  // From its next step on, its computing takes this many times as long.
  void set_slowdown(ft::ReplicaId replica, double factor);

  // ---- the state of the run ----

  bool runs(ft::ReplicaId replica) const;
  // Whether it was made to hang and still runs.
  bool hangs(ft::ReplicaId replica) const;
  int running() const { return running_; }
  const ft::Replica* replica(ft::ReplicaId replica) const;
  // Its last incarnation; 0 if it never ran.
  ft::Incarnation incarnation(ft::ReplicaId replica) const;
  // What its parameters were really made from: equal ones mean equal bits. REQUIRES: it runs.
  const ft::Lineage& parameters(ft::ReplicaId replica) const;
  // The digest of a sum of these members' gradients, computed from equal parameters.
  static std::uint64_t digest_of_sum(
      const ft::Attempt& attempt,
      const std::vector<ft::Member>& members,
      const ft::Lineage& parameters);
  // Null while it is away.
  const ft::Coordinator* coordinator() const { return coordinator_.get(); }
  // What is on disk.
  const ft::History& log() const { return log_; }

  struct Progress {
    // Steps that are committed and were not rolled back.
    std::int64_t steps = 0;
    double work =
        0;  // The same, each as the share of all replicas that made it.
    std::int64_t rolled_back = 0;
    std::int64_t epochs = 0;
    Duration replica_time{0};  // Running replicas, all together.
    Duration too_few_time{0};  // Time with fewer than replicas_min of them.
  };
  // Up to now.
  Progress progress();
  const Traffic::Totals& traffic() const { return traffic_.totals(); }

 private:
  struct Process;
  // The reduction of one attempt, by the members that take part.
  struct Reduction {
    std::size_t members = 0;
    std::set<ft::ReplicaId> entered;
    // What each contributes: a digest of its parameters and samples.
    std::map<ft::ReplicaId, std::uint64_t> computed;
    Instant all_entered{};  // In training time.
    bool ends = false;      // Its end is already an event.
  };
  // What its holder says a state is, and what it was really made from.
  struct Copy {
    ft::StateId state;
    ft::Lineage parameters;
  };
  struct CommittedWork {
    std::int64_t step = 0;
    std::int64_t weight = 1;
    double share = 1;
  };

  // ---- time ----

  // Stands still during a stall.
  Instant training_now() const;
  void at_training(Instant due, EventQueue::Action action);
  // Runs `call` with the process, unless it has ended or hangs by then.
  void after(
      const Process& of, Duration time, std::function<void(Process&)> call);
  void after_training(
      const Process& of, Duration time, std::function<void(Process&)> call);
  EventQueue::Action bound(
      const Process& of, std::function<void(Process&)> call);
  Duration step_overhead() const;
  Duration computing_time(const Process& one) const;
  Duration step_time() const;
  void count_time();

  // ---- the coordinator's side ----

  void start_coordinator();
  void to_coordinator(std::function<ft::CoordinatorDecisions()> call);
  void carry_out(ft::CoordinatorDecisions decisions);
  void write(const ft::CoordinatorDecisions& decisions);
  void send_views(ft::CoordinatorDecisions& decisions);
  // Whether a newer start of the replica has connected before this one.
  bool is_superseded(const ft::Report& report) const;
  void schedule_tick();
  void lost(
      ft::ReplicaId replica,
      ft::Incarnation incarnation,
      const std::string& why);
  void note(const ft::Record& record);
  void note_commit(const ft::CommitRecord& record);
  void note_rollback(const ft::RollbackRecord& record);
  std::int64_t undisturbed_steps(
      const ft::CoordinatorDecisions& decisions) const;
  bool anything_to_find() const;
  void watch();
  void hear_all(const ft::TrainingProgress& progress, Instant at);
  ft::TrainingProgress progress_of(const Process& one) const;
  void tick_detector();
  void act_on(const ft::Finding& finding);

  // ---- the replicas' side ----

  Process& process(ft::ReplicaId replica) const;
  void end(Process& one);
  void carry_out(Process& by, const ft::Tasks& tasks);
  void send_report(Process& from, ft::Report report);
  void send(const Envelope& envelope, const EventQueue::Action& arrive);
  void on(Process& one, const ft::EpochMembers& task);
  void on(Process& one, const ft::ComputeTask& task);
  void on(Process& one, const ft::ReduceTask& task);
  void on(Process& one, const ft::StopReduceTask& task);
  void on(Process& one, const ft::ApplyTask& task);
  void on(Process& one, const ft::CatchUpTask& task);
  void on(Process& one, const ft::StopCatchUpTask& task);
  void on(Process& one, const ft::InstallTask& task);
  void on(Process& one, const ft::StopTask& task);
  void on(Process& one, const ft::ReportTask& task);
  bool peers_are_linked(
      const std::vector<ft::Member>& members, std::size_t at) const;
  void blame(ft::ReplicaId by, ft::ReplicaId accused, const std::string& why);
  void blame_by_peers(ft::ReplicaId accused, const std::string& why);
  void enter_reduction(Process& one, const ft::Attempt& attempt);
  bool a_link_is_cut();
  ft::ReplicaId waited_for_by(std::size_t at) const;
  void end_reduction(const ft::Attempt& attempt);
  void stop_reducing(Process& one);
  std::optional<Copy> newest_copy_for(const Process& one) const;
  Copy newest_copy_of(const Process& donor) const;

  const SimulatedWorldOptions options_;
  EventQueue events_;
  std::function<void(const SimulatedWorld&)> after_event_;
  std::function<void(const ft::Record&)> on_record_;
  std::function<void(const ft::Record&)> on_written_;
  std::function<std::vector<Duration>(const Envelope&)> delivery_;

  std::unique_ptr<ft::Coordinator> coordinator_;
  std::uint64_t coordinator_life_ = 0;
  Instant coordinator_busy_{};
  std::optional<Instant> tick_at_;
  ft::History log_;
  // Only present while a silent replica is to be found.
  std::optional<ft::FailureDetector> detector_;
  // Incarnations that ended without closing connections.
  std::set<std::pair<ft::ReplicaId, ft::Incarnation>> unheard_;

  std::vector<std::unique_ptr<Process>> processes_;
  int running_ = 0;
  ft::Incarnation incarnations_ = 0;
  // The members of each epoch that connect to each other.
  std::map<ft::Epoch, std::set<ft::ReplicaId>> connecting_;
  std::map<ft::Attempt, Reduction> reductions_;
  std::set<std::pair<ft::ReplicaId, ft::ReplicaId>> cut_links_;

  Instant stall_end_{};
  Duration stalled_{0};
  std::int64_t weight_ = 1;  // How many steps the current one stands for.
  std::vector<CommittedWork> committed_;
  Progress progress_;
  Instant counted_until_{};
  Traffic traffic_;
};

}  // namespace sherd::sim
