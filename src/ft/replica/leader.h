// SPDX-License-Identifier: Apache-2.0
//
// Leader is the only process of a replica that talks to the coordinator. It runs the protocol's
// state machine, sends its tasks to all ranks, and feeds an event back once all ranks have sent it.
// It runs in rank 0, next to that rank's RankAgent. Thread rule: its loop.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <type_traits>
#include <vector>
#include "base/backoff.h"
#include "ft/protocol/replica.h"
#include "ft/replica/agent_options.h"
#include "ft/replica/rank_messages.h"
#include "ft/transfer/fetch.h"
#include "ft/wire/report_stream.h"
#include "ft/wire/view_stream.h"
#include "net/connector.h"
#include "net/loop.h"

namespace sherd::ft {

class Leader {
 public:
  using Send = std::function<void(std::size_t rank, const RankTask& task)>;

  // Connects to the coordinator. `addresses` all have this replica's key.
  Leader(
      net::Loop& loop,
      ReplicaAgentOptions options,
      RankAddresses addresses,
      Send send);
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  void received(std::size_t rank, const RankEvent& event);
  // A rank is lost, which ends the replica.
  void lost_rank(std::size_t rank, const std::string& reason);
  // A counterpart wants to fetch the state that this replica holds.
  void snapshot_wanted();

 private:
  // A donor that was asked for a snapshot, with its answer.
  struct SnapshotDonor {
    RankAddresses addresses;
    std::unique_ptr<Fetch> fetch;  // Null once it has answered or failed.
    std::optional<StateId> state;
    std::string failure;  // Why it offers no state.
  };
  // One attempt to catch up: it tries sums from one donor after another, then states from several
  // donors together.
  struct CatchUpAttempt {
    CatchUpTask task;
    std::uint64_t serial = 0;
    std::size_t tries = 0;
    bool wants_sum = false;
    StateId state{};                   // The state that ranks fetch as a whole.
    std::string failure{};             // The failure of the last donor.
    std::vector<SnapshotDonor> asked;  // Asked for a snapshot.
    std::vector<std::optional<FetchedEvent>> answers;  // Indexed by rank.
  };

  std::size_t ranks() const { return addresses_.size(); }
  void carry_out(const Tasks& tasks);
  // ---- tasks of the state machine; most of them go to the ranks unchanged ----

  template <typename T>
  void on(const T& task) {
    if constexpr (
        std::is_same_v<T, ApplyTask> || std::is_same_v<T, InstallTask>) {
      busy_ = true;
    }
    send_all(task);
  }
  void on(const ComputeTask& task);
  void on(const EpochMembers& task);
  void on(const CatchUpTask& task);
  void on(const StopCatchUpTask& task);
  void on(const StopTask& task);
  void on(const ReportTask& task);

  // ---- events of the ranks ----

  void on(std::size_t rank, const JoinedEvent& event);
  void on(std::size_t rank, const ReducedEvent& event);
  void on(std::size_t rank, const Suspicion& suspicion);
  void on(std::size_t rank, const WrittenEvent& event);
  void on(std::size_t rank, const FetchedEvent& event);
  void on(std::size_t rank, const TrainingProgress& progress);
  void on(std::size_t rank, const LeaveEvent& event);
  void on(std::size_t rank, const FinishedEvent& event);
  void on(std::size_t rank, const BadGradientsEvent& event);
  void on(std::size_t rank, const LinkSpeeds& links);

  void send_all(const RankTask& task);
  void received_view(const net::Frame& frame);
  bool refused(const net::Frame& frame);
  void report();
  void not_reached(const Status& reason);
  void send_heartbeat();
  TrainingProgress progress() const;
  std::vector<TrainingProgress> progress_of_ranks() const;
  std::vector<LinkSpeed> link_speeds() const;
  // An empty reason means that it stops in order.
  void stop(const std::string& reason);
  void leave_in_order();
  void leave_undecided();
  void end_in_order();
  void offer_snapshot();

  void try_next_donor();
  void fetch_from(
      const std::vector<RankAddresses>& donors, const StateId& state);
  void ask_snapshots();
  void heard_snapshot(std::size_t donor, const Result<StateId>& state);
  void fetch_state();
  void warm_up();
  void fetched(StateId state);
  void fetch_failed();

  net::Loop& loop_;
  const ReplicaAgentOptions options_;
  const RankAddresses addresses_;
  const Send send_;
  Replica machine_;
  bool run_is_known_ = false;
  bool busy_ = false;  // The held state is being written.
  bool snapshot_wanted_ = false;
  bool finished_ = false;      // Its program makes no further steps.
  std::uint64_t reports_ = 0;  // How many reports were made.
  bool stopped_ = false;
  bool computed_ = false;  // It has computed before.
  // How many ranks have joined, and the digests of the ranks that have reduced.
  std::map<Epoch, std::size_t> joined_;
  std::map<Attempt, std::map<std::size_t, std::uint64_t>> digests_;
  // The digests of each rank's part, by rank.
  std::map<std::size_t, std::optional<StateDigest>> written_;
  std::vector<TrainingProgress> progress_;           // Indexed by rank.
  std::vector<std::vector<LinkSpeed>> link_speeds_;  // Indexed by rank.
  // Heartbeats without a message from the rank, indexed by rank.
  std::vector<std::uint32_t> missed_heartbeats_;
  std::uint64_t recovered_ranks_ = 0;  // How often a silent rank came back.
  // As of the last heartbeat. Hangs last for seconds, and sending these with every vote would
  // double the size of reports.
  std::vector<TrainingProgress> reported_ranks_;
  std::int64_t beats_ = 0;
  // While it leaves: what has happened so far, and since when nothing more has.
  struct Standstill {
    std::uint64_t progress = 0;
    Epoch epoch;
    std::int64_t step = 0;
    Instant since{};
  };
  std::optional<Standstill> standstill_;
  // The run of a coordinator that was refused.
  std::optional<std::uint64_t> other_run_;
  std::optional<CatchUpAttempt> catch_up_;
  std::uint64_t fetches_ = 0;
  std::string fetch_failure_;  // The failure logged last.
  // The reason logged last for having no coordinator.
  std::string unreached_;
  Backoff fetch_backoff_{
      {.first = std::chrono::milliseconds(5),
       .longest = std::chrono::milliseconds(100)}};
  net::Timer others_;  // Runs while donors are asked for a snapshot.
  net::Timer retry_;
  net::Timer linger_;
  net::Timer heartbeat_;
  std::mt19937_64 random_;
  ReportWriter reports_out_;  // Reports on the current connection.
  ViewReader views_in_;
  std::unique_ptr<net::ReconnectingClient> coordinator_;
};

}  // namespace sherd::ft
