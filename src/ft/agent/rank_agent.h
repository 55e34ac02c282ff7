// SPDX-License-Identifier: Apache-2.0
//
// RankAgent is one rank's part of a replica: it reduces with its counterparts,
// gives and gets states, and hands its program one order after another. It does
// what the leader commands and decides nothing. Docs: docs/design/fault_tolerance.md.
// Thread rule: its loop, but for what is marked as the program's, which is for the
// one thread that trains.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include "ft/agent/commands.h"
#include "ft/agent/orders.h"
#include "ft/ring/ring.h"
#include "ft/transfer/fetch.h"
#include "ft/transfer/transfer_server.h"
#include "net/loop.h"
#include "net/security.h"

namespace sherd::ft {

// For tests of failures. Empty ones cost nothing.
struct RankAgentHooks {
  // At named places, on the thread that is there: the program's at "given",
  // "committed", "applied", "offered", "installing", "installed"; the loop's at
  // "joined" (with the epoch's number), "reducing", "reduced", "voted" and
  // "fetching".
  std::function<void(const char* point, std::int64_t step)> reach;
  // Another port of that counterpart's host.
  std::function<std::uint16_t(ReplicaId to, std::uint16_t port)> route;
};

struct RankAgentOptions {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  int shard_rank = 0;
  // Behaviour. Where counterparts reach this rank: an address of this host.
  std::string host = "127.0.0.1";
  net::Security security{};
  // Elements of this rank's gradients, by bucket: as at its counterparts.
  std::vector<std::int64_t> buckets;
  // Performance. Sums of past steps that are kept for who lacks them.
  int sums_kept = 2;
  // Of a returning replica's fetch; 0: no limit.
  std::uint64_t fetch_bytes_per_s_max = 0;
  RankAgentHooks hooks{};
};

// What the program does when it is its turn, on its own thread. What these throw
// ends the program's wait.
struct RankProgram {
  // All that makes this rank's state, as bytes, and back.
  std::function<std::string()> snapshot;
  std::function<void(std::string_view)> restore;
  // Makes the step that was committed, with this sum of gradients: all buckets,
  // one behind the other.
  std::function<void(const Commit& commit, const float* gradients)> update;
};

class RankAgent {
 public:
  using Tell = std::function<void(AgentEvent)>;

  // `tell` is called in the loop.
  RankAgent(net::Loop& loop, RankAgentOptions options, Tell tell);
  RankAgent(const RankAgent&) = delete;
  RankAgent& operator=(const RankAgent&) = delete;
  // REQUIRES: the loop does not run any more.
  ~RankAgent();

  RankAddress address() const;
  // A counterpart of a returning replica wants a snapshot; rank 0's to hear.
  void on_snapshot_wanted(std::function<void()> wanted);
  void take(const Command& command);
  Progress progress() const;

  // ---- the program's ----

  // The next gradients to compute; none: this replica has left in order. Throws
  // Error when it has no place any more, with the reason.
  std::optional<ComputeCommand> next(const RankProgram& program);
  // Where they belong: all buckets, one behind the other.
  float* gradients() { return mine_.data(); }
  // They are there. Returns when it is decided what becomes of them: true, and the
  // step was made; false: they are of no use any more.
  bool finish(const ComputeCommand& task, const RankProgram& program);
  // It makes no more steps. Returns when nobody needs this replica any more, which
  // takes a minute at most.
  void end(const RankProgram& program);

 private:
  void on(const RunCommand& command);
  void on(const JoinCommand& command);
  void on(const ComputeCommand& command);
  void on(const ReduceCommand& command);
  void on(const StopReduceCommand& command);
  void on(const ApplyCommand& command);
  void on(const SnapshotCommand& command);
  void on(const FetchStateCommand& command);
  void on(const FetchSumCommand& command);
  void on(const DropFetchCommand& command);
  void on(const InstallCommand& command);
  void on(const StopCommand& command);
  void reach(const char* point, std::int64_t step) const;
  RingEvents ring_events();
  FetchOptions fetch_options() const;
  net::HostAddress donor(const RankAddress& address) const;
  void rest();
  std::uint64_t digest_of(const std::string& sum) const;
  void give(std::uint64_t serial);
  void fetched(std::uint64_t serial, Result<Fetched> result);
  // In the loop, later.
  void tell(AgentEvent event);
  void make(const ApplyCommand& order, const RankProgram& program);
  void make(const SnapshotCommand& order, const RankProgram& program);
  void make(const InstallOrder& order, const RankProgram& program);

  net::Loop& loop_;
  const RankAgentOptions options_;
  const Tell tell_;
  std::vector<float> mine_;
  std::vector<float> sum_;
  Orders orders_;
  std::uint64_t run_ = 0;
  std::uint64_t computing_ = 0;  // The serial of the last ComputeCommand.
  std::function<void()> snapshot_wanted_;
  std::unique_ptr<Fetch> fetch_;
  std::optional<Fetched> fetched_;
  std::atomic<Activity> activity_{Activity::kIdle};  // The program's.
  std::atomic<std::uint64_t> moves_{0};              // Of the program.
  std::unique_ptr<TransferServer> transfer_;
  std::unique_ptr<Ring> ring_;  // Last: its thread ends before the rest.
};

}  // namespace sherd::ft
