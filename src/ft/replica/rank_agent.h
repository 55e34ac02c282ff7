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
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include "ft/replica/commands.h"
#include "ft/replica/training_queue.h"
#include "ft/replica/digest_thread.h"
#include "ft/ring/ring.h"
#include "ft/ring/shared_floats.h"
#include "ft/transfer/fetch.h"
#include "ft/transfer/sum_prefetcher.h"
#include "ft/transfer/transfer_server.h"
#include "net/loop.h"
#include "net/security.h"

namespace sherd::ft {

// For tests of failures. Empty ones cost nothing.
struct RankAgentTestHooks {
  // At named places, on the thread that is there: the program's at "given",
  // "committed", "applied", "offered", "installing", "installed"; the loop's at
  // "joined" (with the epoch's number), "reducing", "reduced", "voted" and
  // "fetching"; the leader's at "beat" (with its number).
  std::function<void(const char* point, std::int64_t step)> reach;
  // May change the sum of this step before its digest is made; whether it has.
  std::function<bool(std::int64_t step, float* sum)> spoil;
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
  // What each bucket is of, for reports of who waits for what; none: no names.
  std::vector<std::string> bucket_names{};
  // Performance. Counterparts on this host read this rank's gradients where they
  // lie, if they let theirs be read too; what a hook changes goes over TCP.
  bool shares_memory = true;
  // Sums of past steps that are kept for who lacks them; and while
  // somebody catches up, so many bytes of them, at him, too.
  int sums_kept = 2;
  std::uint64_t sums_bytes_max = std::uint64_t{4} << 30U;
  // Behaviour. After so many steps the program's digest is compared with those of
  // the other replicas; 0: never.
  int digest_every = 0;
  // Of states that others fetch here; 0: no limit.
  std::uint64_t fetch_bytes_per_s_max = 0;
  RankAgentTestHooks hooks{};
};

// What the program does when it is its turn, on its own thread. What these throw
// ends the program's wait.
struct TrainingCallbacks {
  // All that makes this rank's state, as bytes, and back.
  std::function<std::string()> snapshot;
  std::function<void(const StateId& state, std::string_view bytes)> restore;
  // Makes the step that was committed, with this sum of gradients: all buckets,
  // one behind the other.
  std::function<void(const Commit& commit, const float* gradients)> update;
  // Of what is the same in all replicas; none: it is never compared.
  std::function<std::uint64_t()> digest{};
};

class RankAgent {
 public:
  using OnRankEvent = std::function<void(RankEvent)>;

  // `tell` is called in the loop.
  RankAgent(net::Loop& loop, RankAgentOptions options, OnRankEvent tell);
  RankAgent(const RankAgent&) = delete;
  RankAgent& operator=(const RankAgent&) = delete;
  // REQUIRES: the loop does not run any more.
  ~RankAgent();

  RankAddress address() const;
  // A counterpart of a returning replica wants a snapshot; rank 0's to hear.
  void on_snapshot_wanted(std::function<void()> wanted);
  void take(const Command& command);
  TrainingProgress progress() const;

  // ---- the program's ----

  // The next gradients to compute; none: this replica has left in order. Throws
  // Error when it has no place any more, with the reason.
  std::optional<ComputeCommand> next(const TrainingCallbacks& program);
  // Where they belong: all buckets, one behind the other.
  float* gradients() { return own_gradients_.data(); }
  std::span<const float> gradients(int bucket) const;
  // Those of one bucket are there, and stay as they are until the step is decided:
  // they may be reduced while others are computed. From any thread.
  void give(const ComputeCommand& task, int bucket);
  // All are there. Returns when it is decided what becomes of them: true, and the
  // step was made; false: they are of no use any more.
  bool finish(const ComputeCommand& task, const TrainingCallbacks& program);
  // Instead, when they are of no use, and those of one bucket at least were not
  // given: the step is made without this replica's. Returns as finish() does.
  bool refuse(
      const ComputeCommand& task,
      const GradientFault& fault,
      const TrainingCallbacks& program);
  // It makes no more steps. Returns when nobody needs this replica any more, which
  // takes a minute at most.
  void end(const TrainingCallbacks& program);

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
  std::optional<RingPosition> place_of(const RingProgress& ring) const;
  RingEvents ring_events();
  FetchOptions fetch_options() const;
  void set_activity(Activity activity);
  void set_idle();
  bool has_left(const TrainingTask& task) const;
  std::uint64_t digest_of(const std::string& sum) const;
  std::uint64_t digest_of(const float* sum) const;
  std::optional<StateDigest> digest_of(
      const StateId& state, const TrainingCallbacks& program);
  bool wait_for_decision(const TrainingCallbacks& program);
  void give(std::uint64_t serial, int bucket);
  void fetched_sum(std::uint64_t serial, FetchedSum sum);
  void failed_to_fetch(std::uint64_t serial, const Status& why);
  // In the loop, later.
  void tell(RankEvent event);
  void execute(const ApplyCommand& task, const TrainingCallbacks& program);
  void execute(const SnapshotCommand& task, const TrainingCallbacks& program);
  void execute(const InstallFetchedTask& task, const TrainingCallbacks& program);

  net::Loop& loop_;
  const RankAgentOptions options_;
  const OnRankEvent tell_;
  // Counterparts on this host may read it until the ring forgets what was given.
  ring::SharedFloats memory_;
  const std::span<float> own_gradients_;
  const std::span<float> sum_;
  TrainingQueue queue_;
  std::uint64_t run_ = 0;
  std::uint64_t computing_ = 0;  // The serial of the last ComputeCommand.
  std::vector<bool> given_;      // Its buckets.
  // The program's: its state was copied since its last digest.
  bool copied_ = false;
  std::function<void()> snapshot_wanted_;
  std::unique_ptr<Fetch> fetch_;
  std::optional<SumPrefetcher> collector_;  // While it catches up.
  std::optional<FetchedState> fetched_;
  std::atomic<Activity> activity_{Activity::kIdle};  // The program's.
  std::atomic<std::uint64_t> activity_changes_{0};              // Of the program.
  std::unique_ptr<TransferServer> transfer_;
  std::unique_ptr<Ring> ring_;  // Its thread ends before the rest,
  DigestThread digests_thread_;               // and this one first.
};

}  // namespace sherd::ft
