// SPDX-License-Identifier: Apache-2.0
//
// RankAgent is the agent of one rank: it all-reduces gradients with its counterparts in other
// replicas, serves and fetches states, and passes tasks to its program. It carries out the leader's
// tasks and decides nothing. docs/design/fault_tolerance.md describes it. Thread rule: its loop;
// the methods marked as the program's belong to the training thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include "base/worker_thread.h"
#include "ft/replica/agent_options.h"
#include "ft/replica/rank_messages.h"
#include "ft/replica/training_queue.h"
#include "ft/ring/ring.h"
#include "ft/ring/shared_floats.h"
#include "ft/transfer/fetch.h"
#include "ft/transfer/sum_prefetcher.h"
#include "ft/transfer/transfer_server.h"
#include "net/loop.h"

namespace sherd::ft {

// The program's part in tasks, called in its own thread. Their exceptions leave the method that has
// called them.
struct TrainingCallbacks {
  // Returns this rank's whole state as bytes; the next one restores it.
  std::function<std::string()> snapshot;
  std::function<void(const StateId& state, std::string_view bytes)> restore;
  // Copies one bucket of a sum, whose buckets lie one behind the other. Each bucket is passed
  // before update(), while the sum is still undecided. The sum may be given up: then the buckets of
  // another one follow. It must not change anything that is trained. May be empty, in which case
  // update() does all the work.
  std::function<void(int bucket, const float* sum)> prepare{};
  // Makes the committed step with this sum.
  std::function<void(const Commit& commit, const float* sum)> update;
  // A digest of what must be equal in all replicas; if empty, nothing is compared.
  std::function<std::uint64_t()> digest{};
};

// Where this rank's counterparts fetch from a rank, and how this rank fetches in a run.
net::HostAddress fetch_address_of(const RankAddress& address);
FetchOptions fetch_options(const RankAgentOptions& rank, std::uint64_t run);

class RankAgent {
 public:
  using OnRankEvent = std::function<void(RankEvent)>;

  // Both functions are called in the loop. `snapshot_wanted` says that a counterpart in a returning
  // replica asks for a snapshot; only rank 0's counts.
  RankAgent(
      net::Loop& loop,
      RankAgentOptions options,
      OnRankEvent tell,
      std::function<void()> snapshot_wanted);
  RankAgent(const RankAgent&) = delete;
  RankAgent& operator=(const RankAgent&) = delete;
  // REQUIRES: the loop no longer runs.
  ~RankAgent();

  RankAddress address() const;
  void take(const RankTask& task);
  TrainingProgress progress() const;
  std::vector<LinkSpeed> link_speeds() const;

  // ---- for the program ----

  // The next gradients to compute; nullopt if this replica has left in order. Throws Error, with
  // the reason, if the replica was ended otherwise. If the last finish() or refuse() threw instead
  // of returning, what it waited for is carried out first.
  std::optional<ComputeTask> next(const TrainingCallbacks& program);
  // The run's number, once next() has returned a task.
  std::uint64_t run() const { return run_; }
  // Where the program writes its gradients: all buckets, one behind the other.
  float* gradients() { return own_gradients_.data(); }
  std::span<const float> gradients(int bucket) const;
  // Says that the gradients of one bucket are written and stay unchanged until the step is decided.
  // They may be reduced while others are computed. May be called from any thread.
  void give(const ComputeTask& task, int bucket);
  // Says that all gradients are written, and returns when the step is decided: true if it was made,
  // false if the gradients are obsolete.
  bool finish(const ComputeTask& task, const TrainingCallbacks& program);
  // Replaces finish() when the gradients are bad: the step is made without those of this replica.
  // Returns as finish() does. REQUIRES: at least one bucket was not given.
  bool refuse(
      const ComputeTask& task,
      const GradientFault& fault,
      const TrainingCallbacks& program);
  // Replaces finish() when some gradients will never come: as refuse(), but it does not wait.
  void give_up(const ComputeTask& task, const std::string& reason);
  // Runs `work`, which is not part of a step and may therefore take longer than a part of one.
  void other_work(const std::function<void()>& work);
  // The program makes no further steps. Returns when no other replica needs this one any more,
  // after a minute at most. A sum that is not decided yet is waited for, too, and applied.
  void end(const TrainingCallbacks& program);

 private:
  // Tasks that the program carries out.
  template <typename T>
  void on(const T& task) {
    queue_.push(task);
  }
  void on(const StartRunTask& task);
  void on(const RingMembership& ring);
  void on(const ComputeTask& task);
  void on(const ReduceTask& task);
  void on(const StopReduceTask& task);
  void on(const SnapshotTask& task);
  void on(const FetchTask& task);
  void on(const StopCatchUpTask& task);
  void on(const InstallTask& task);
  void reach(const char* point, std::int64_t step) const;
  std::optional<RingPosition> place_of(const RingProgress& ring) const;
  RingEvents ring_events();
  void set_activity(Activity activity);
  void set_idle();
  bool has_left(const TrainingTask& task) const;
  std::uint64_t digest_of(const std::string& sum) const;
  std::optional<StateDigest> digest_of(
      const StateId& state, const TrainingCallbacks& program);
  void set_sum_of(const std::optional<Attempt>& attempt);
  void prepare(const Attempt& attempt, const TrainingCallbacks& program);
  void serve(const TrainingTask& task, const TrainingCallbacks& program);
  bool wait_for_decision(const TrainingCallbacks& program);
  void give(std::uint64_t serial, int bucket);
  void give_all(const ComputeTask& task);
  void tell_bad(const ComputeTask& task, const GradientFault& fault);
  void fetched(const FetchTask& task, std::string bytes);
  void fetched(const FetchTask& task, CommittedSum sum);
  void failed_to_fetch(std::uint64_t serial, const Status& why);
  // Posts to the loop. From any thread.
  void tell(RankEvent event);
  void execute(const ApplyTask& task, const TrainingCallbacks& program);
  void execute(const SnapshotTask& task, const TrainingCallbacks& program);
  void execute(
      const InstallFetchedTask& task, const TrainingCallbacks& program);

  net::Loop& loop_;
  const RankAgentOptions options_;
  const OnRankEvent tell_;
  // Counterparts on this host may read it until ring_->forget(). Unused if the options have memory.
  std::optional<ring::SharedFloats> shared_;
  const std::span<float> memory_;
  const std::span<float> own_gradients_;
  const std::span<float> sum_;
  TrainingQueue queue_;
  std::uint64_t run_ = 0;
  std::uint64_t computing_ = 0;  // The serial of the last ComputeTask.
  std::vector<bool> given_;      // Which of its buckets were given.
  // The attempt whose sum is complete. The ring writes to sum_ only when there is none. While the
  // program's thread reads a bucket of an undecided sum it holds the mutex, so that the loop waits
  // before it lets the ring begin another sum.
  std::mutex sum_mutex_;
  std::optional<Attempt> sum_of_;
  // What was copied of a sum, by the program's thread.
  struct PreparedSum {
    Attempt attempt;
    std::string bytes;  // For replicas that lack it, if sums are kept.
  };
  std::optional<PreparedSum> prepared_;
  // Whether the state was copied since the last digest; used by the program's thread.
  bool copied_ = false;
  std::unique_ptr<Fetch> fetch_;
  std::optional<SumPrefetcher> collector_;  // Only while it catches up.
  std::optional<InstallFetchedTask> fetched_;
  std::atomic<Activity> activity_{Activity::kIdle};  // The program's activity.
  // How often it has changed.
  std::atomic<std::uint64_t> activity_changes_{0};
  std::unique_ptr<TransferServer> transfer_;
  std::unique_ptr<Ring> ring_;  // Its thread ends before the rest,
  WorkerThread digests_thread_{"sherd-digests"};  // and these first.
  WorkerThread joins_thread_{"sherd-joins"};
};

}  // namespace sherd::ft
