// SPDX-License-Identifier: Apache-2.0
//
// Fault-tolerant training: several replicas of a model, each of one or more ranks
// with a World of their own, train in lock step; one may die, hang or be cut off
// while the others go on, and come back while they train.
//
//   auto world = sherd::World::from_environment();   // The ranks of this replica.
//   auto fsdp = sherd::fully_shard(*model, world);
//   auto adamw = sherd::AdamW(fsdp.named_parameters(), {.learning_rate = 3e-4});
//   sherd::CheckpointState state;
//   state.add(fsdp.named_parameters());
//   state.add("adamw", adamw, fsdp.named_parameters());
//   sherd::ft::ReplicaSession session(
//       world, fsdp.named_parameters(), state,
//       [&](std::int64_t step) { fsdp.clip_grad_norm(1.0); adamw.step(); },
//       sherd::ft::SessionOptions::from_environment());
//   while (auto step = session.begin_step()) {
//     for (const auto& samples : step->samples) {
//       model->loss(rows(samples)).backward();
//     }
//     session.finish_step();
//   }
//
// Gradients are summed across replicas and a step is made only when the
// coordinator has committed it (`sherd coordinate`): replicas that hold the same
// step hold the same bits. A failure costs the others one repeated all-reduce, no
// forward or backward. What was published: FT-HSDP, arXiv 2602.00277; what is done
// here: docs/design/fault_tolerance.md, docs/guide/fault_tolerance.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/comm/world.h>
#include <sherd/optim/named_parameters.h>

namespace sherd::ft {

struct SessionOptions {
  // Behaviour. Where `sherd coordinate` listens, "host:port".
  std::string coordinator;
  // Behaviour. The number of this replica; each has its own, below 4096.
  int replica = 0;
  // Behaviour. Replicas that the job is meant to have: what learning rates may be
  // scaled by.
  int replicas = 1;
  // Behaviour. An address of this host at which the other replicas reach it.
  std::string host = "127.0.0.1";
  // Behaviour. The file whose bytes the coordinator knows, too; empty: none, on
  // one host only.
  std::string secret_file;
  // Behaviour. What else replicas must have in common: those of another text are
  // refused.
  std::string config;
  // Performance. Sums of past steps that are kept for who lacks them; each costs
  // the memory of this rank's gradients and a copy of them a step. Without any, a
  // replica that missed a step fetches a whole state.
  int sums_kept = 2;
  // Performance. What a returning replica may take from each rank; 0: no limit.
  std::int64_t fetch_bytes_per_s_max = 0;

  // SHERD_COORDINATOR, SHERD_REPLICA, SHERD_REPLICAS and SHERD_SECRET_FILE, as
  // `sherd run --fault-tolerant` sets them. A spare (SHERD_SPARE) waits here until
  // it takes the place of a replica: to be called when all else is ready. Throws
  // Error for one that is missing or no number.
  static SessionOptions from_environment();
};

// Samples [begin, end) of the run's order, which is endless: each is in one
// committed step.
struct SampleSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct TrainingStep {
  std::int64_t step = 0;  // That it makes, counted from 1.
  // This rank's. None: the replica follows, and computes nothing.
  std::vector<SampleSpan> samples;
  std::int64_t replica_samples = 0;  // Of all its ranks.
  int replicas = 0;                  // That train in it.
};

// Thread rule: one thread, the one that trains; leave() from any.
class ReplicaSession {
 public:
  // Collective over `world`, the ranks of this replica. Every replica has as many
  // ranks, equal first values, and adds the same to `state`: all that makes a
  // step what it is, parameters included. `update` makes a step of `.grad()` of
  // the parameters: clipping, schedule, optimizer; it is called for each step
  // once, also for those that this replica has missed. Throws Error for options
  // that make no sense.
  ReplicaSession(
      const World& world,
      const NamedParameters& parameters,
      CheckpointState state,
      std::function<void(std::int64_t step)> update,
      const SessionOptions& options);
  ReplicaSession(const ReplicaSession&) = delete;
  ReplicaSession& operator=(const ReplicaSession&) = delete;
  ~ReplicaSession();

  // Collective. What to compute next, with `.grad()` cleared; none: the replica
  // has left. Waits while the coordinator is away or too few replicas are there.
  // State that was missed has been fetched when it returns. Throws Error when the
  // replica has no place any more: a newer life of it has come, another
  // configuration, or one of its ranks was lost.
  std::optional<TrainingStep> begin_step();

  // Collective. Sums what backward has put into `.grad()`, the mean over the
  // rank's samples, weighted by samples, and waits for the decision. True: the
  // step is made, `update` was called. False: nothing was; the next begin_step()
  // says what to do.
  bool finish_step();

  // The last step that this replica has.
  std::int64_t step() const;
  // Inside `update`: how many samples are in the step that it makes, over all
  // replicas. The same on each, whenever it makes the step: what a learning rate
  // may follow while replicas are missing.
  std::int64_t samples_of_update() const;

  // To be called at any time: the replica finishes the step it is in, then
  // begin_step() returns none.
  void leave();

  // Collective. No more steps: waits until the others have the last one, a minute
  // at most, and ends the connections. The destructor ends them without waiting.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
