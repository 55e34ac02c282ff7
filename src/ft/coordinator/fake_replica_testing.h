// SPDX-License-Identifier: Apache-2.0
//
// A replica without a model, for tests: the real state machine and connection, and
// processes which do at once, or after a delay, what they are told. Thread rule:
// its loop.
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
  // That a reduction takes.
  Duration step = std::chrono::milliseconds(5);
  // It says where so many ranks are, and what each does.
  std::size_t ranks = 0;
  // Called with each task, before it is carried out.
  std::function<void(const Task&)> on_task{};
};

class FakeReplica {
 public:
  FakeReplica(net::Loop& loop, const FakeReplicaOptions& options);
  FakeReplica(const FakeReplica&) = delete;
  FakeReplica& operator=(const FakeReplica&) = delete;

  // Says nothing any more, and keeps its connection.
  void fall_silent() { silent_ = true; }
  // Its training threads do nothing; the thread that reports goes on.
  void hang() { hangs_ = true; }
  // The same, from the next time on that they begin with this.
  void hang_in(Activity activity) { hangs_in_ = activity; }
  void go_on();
  void leave() { carry_out(machine_.leave()); }

  std::int64_t step() const { return machine_.held()->step; }
  const Replica& machine() const { return machine_; }
  // Every commit that it has heard of, in order, each once.
  const std::vector<Commit>& commits() const { return commits_; }
  // Why it was told to stop; empty: it was not.
  const std::string& stopped() const { return stopped_; }
  net::Connection* connection() { return redial_->connection(); }
  int connected() const { return connected_; }
  // Sent and received, with the headers of frames.
  std::uint64_t bytes() const { return bytes_; }

 private:
  void carry_out(const Tasks& tasks);
  void carry_out_one(const Task& task);
  void enter(Activity activity);
  // As a process that takes `delay` for it.
  void later(Duration delay, std::function<void()> work);
  void send(Report report);
  void beat();
  void received(const net::Frame& frame);

  net::Loop& loop_;
  const FakeReplicaOptions options_;
  Replica machine_;
  RankAddresses addresses_;
  ReportWriter reports_;  // Of the connection.
  ViewReader views_;
  StateId fetched_;
  TrainingProgress progress_;
  // As of the last beat, as leaders tell it.
  std::vector<TrainingProgress> ranks_;
  bool silent_ = false;
  bool hangs_ = false;
  std::optional<Activity> hangs_in_;
  int connected_ = 0;
  std::uint64_t beats_ = 0;
  std::uint64_t bytes_ = 0;
  std::string stopped_;
  std::vector<Commit> commits_;
  std::vector<net::Timer> work_;
  std::vector<std::function<void()>> kept_;  // While it hangs.
  net::Timer beat_timer_;
  std::mt19937_64 random_;
  std::unique_ptr<net::ReconnectingClient> redial_;
};

// Runs the loop until `done`, looking every few milliseconds, or for `limit`;
// returns done().
bool run_until(
    net::Loop& loop,
    const std::function<bool()>& done,
    Duration limit = std::chrono::seconds(20));

}  // namespace sherd::ft::test
