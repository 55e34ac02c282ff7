// SPDX-License-Identifier: Apache-2.0
//
// A replica without a model, for tests: it has the real state machine and connection, and processes
// that do what they are told, at once or after a delay. Thread rule: its loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>
#include "ft/protocol/replica.h"
#include "ft/wire/report_stream.h"
#include "ft/wire/view_stream.h"
#include "net/connector.h"
#include "net/loop.h"

namespace sherd::ft::test {

struct FakeReplicaOptions {
  net::HostAddress address;
  net::Security security{};
  ReplicaId replica = 0;
  Incarnation incarnation = 1;
  Duration beat = std::chrono::milliseconds(100);
  // How long a reduction takes.
  Duration step = std::chrono::milliseconds(5);
  // How many ranks it reports on.
  std::size_t ranks = 0;
  // Called with each task, before it is carried out.
  std::function<void(const Task&)> on_task{};
};

class FakeReplica {
 public:
  FakeReplica(net::Loop& loop, const FakeReplicaOptions& options);
  FakeReplica(const FakeReplica&) = delete;
  FakeReplica& operator=(const FakeReplica&) = delete;

  // It stops sending but keeps its connection.
  void fall_silent() { silent_ = true; }
  // Its training threads stop; the thread that reports goes on.
  void hang() { hangs_ = true; }
  // The same as hang(), from the next time that they begin this activity.
  void hang_in(Activity activity) { hangs_in_ = activity; }
  bool hanging() const { return hangs_; }
  void go_on();
  void leave() { carry_out(machine_.leave()); }

  std::int64_t step() const { return machine_.held()->step; }
  const Replica& machine() const { return machine_; }
  // Every commit that it has heard of, once each and in order.
  const std::vector<Commit>& commits() const { return commits_; }
  // Why it was told to stop; empty if it was not.
  const std::string& stopped() const { return stopped_; }
  net::Connection* connection() { return redial_->connection(); }
  int connected() const { return connected_; }
  // Bytes sent and received, with the headers of frames.
  std::uint64_t bytes() const { return bytes_; }

 private:
  void carry_out(const Tasks& tasks);
  void carry_out_one(const Task& task);
  void enter(Activity activity);
  void after(Duration delay, std::function<void()> work);
  // Runs `work` after `delay`, as a training thread that takes that long would: not while it hangs.
  void later(Duration delay, std::function<void()> work);
  void send(Report report);
  void beat();
  void received(const net::Frame& frame);

  net::Loop& loop_;
  const FakeReplicaOptions options_;
  Replica machine_;
  RankAddresses addresses_;
  ReportWriter reports_;  // Reports on the current connection.
  ViewReader views_;
  StateId fetched_;
  TrainingProgress progress_;
  // As of the last heartbeat, which is what leaders report.
  std::vector<TrainingProgress> ranks_;
  bool silent_ = false;
  bool hangs_ = false;
  std::optional<Activity> hangs_in_;
  int connected_ = 0;
  std::uint64_t beats_ = 0;
  std::uint64_t bytes_ = 0;
  std::string stopped_;
  std::vector<Commit> commits_;
  std::vector<net::Timer> work_;             // Work under way.
  std::vector<std::function<void()>> kept_;  // Work held back while it hangs.
  net::Timer beat_timer_;
  std::mt19937_64 random_;
  std::unique_ptr<net::ReconnectingClient> redial_;
};

// Runs the loop until `done`, checking every few milliseconds, or for `limit`; returns done().
bool run_until(
    net::Loop& loop,
    const std::function<bool()>& done,
    Duration limit = std::chrono::seconds(20));

}  // namespace sherd::ft::test
