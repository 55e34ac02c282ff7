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
//     if (!step->samples.empty()) {  // Else it follows.
//       auto loss = model->loss(rows(step->samples));  // One batch of all.
//       session.last_backward();
//       loss.backward();
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
#include <sherd/optim/named_parameters.h>
#include <sherd/world/world.h>

namespace sherd::ft {

// What becomes of gradients that a replica has found to be of no use.
enum class GradientPolicy {
  kGive,      // They are reduced like others.
  kLeaveOut,  // The step is made without this replica's, on all of them; its
              // samples count as taken. As a gradient scaler skips a step.
  kStop,      // Nothing is committed any more until somebody has looked.
};

struct SessionOptions {
  // ---- behaviour ----

  // Where `sherd coordinate` listens, "host:port".
  std::string coordinator;
  // The number of this replica; each has its own, below 4096.
  int replica = 0;
  // Replicas that the job is meant to have: for the program alone.
  int replicas = 1;
  // An address of this host at which the other replicas reach it.
  std::string host = "127.0.0.1";
  // How coordinator and replicas know each other: the file of a secret
  // that all have, or a certificate, its key and the certificate of the authority
  // of all (PEM files). None: on one host only.
  std::string secret_file;
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_authority;
  // What else replicas must have in common: those of another text are
  // refused.
  std::string config;
  // What ReplicaCheckpoints::load() has returned: the state that this
  // replica begins with. Empty: the first values.
  std::string held;
  // Samples of a step in which no replica is missing; 0: unknown.
  std::int64_t samples_full = 0;
  // What becomes of gradients with an element that is infinite or not a number, on
  // any rank of the replica. The check reads them once, as they are copied.
  GradientPolicy non_finite_gradients = GradientPolicy::kLeaveOut;
  // What becomes of gradients whose norm on a rank is more than norm_ratio_max times
  // its moving average in this process, as it is when bits went wrong. A ratio of
  // 0: no norm is too large.
  GradientPolicy outlier_gradients = GradientPolicy::kLeaveOut;
  double norm_ratio_max = 1e4;
  // A process that has a state to fetch first computes gradients of the
  // first values meanwhile, of samples like those of others: what a program does for
  // the first time, as compiling, is done when the others wait for it. The first
  // begin_step() says so (`warms_up`), and finish_step() returns false. What
  // forward changes by itself, as running statistics, it changes once more.
  bool warm_up = false;
  // After each so many steps replicas compare digests of their
  // parameters; one that differs from most drops its state and copies another's.
  // Where there is no majority training stops. Costs reading them once. 0: never.
  int digest_every = 100;
  // ---- performance ----

  // Sums of past steps that are kept for replicas that lack them; each costs the
  // memory of this rank's gradients and a copy of them a step. Without any, a
  // replica that missed a step fetches a whole state.
  int sums_kept = 2;
  // While another replica catches up, so many bytes of them are kept;
  // and when this one does, it collects as many. Whose state takes longer to fetch
  // than both together last never catches up.
  std::int64_t sums_bytes_max = std::int64_t{4} << 30U;
  // The rate at which all replicas that catch up together may fetch this rank's
  // state; 0: no limit. The default is a twentieth of one core's time here. They
  // fetch from up to four replicas at once. Sums have no limit.
  std::int64_t fetch_bytes_per_s_max = 50'000'000;

  // SHERD_COORDINATOR and SHERD_REPLICA; where they are set, SHERD_REPLICAS,
  // SHERD_SAMPLES (samples_full), SHERD_HOST, SHERD_SECRET_FILE, SHERD_TLS_CERT,
  // SHERD_TLS_KEY and SHERD_TLS_CA. `sherd run --fault-tolerant` sets those that it
  // knows. A spare (SHERD_SPARE) waits here until it takes the place of a replica:
  // to be called when all else is ready. Throws Error for one that is missing or no
  // number.
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
  // This rank's; each rank of the replica has as many. None: the replica follows,
  // and computes nothing. After failures they may lie in several spans, in more on
  // one rank than on another: make one batch of them, or micro-batches whose number
  // follows from how many samples there are.
  std::vector<SampleSpan> samples;
  std::int64_t replica_samples = 0;  // Of all its ranks.
  int replicas = 0;                  // In it, also those that follow.
  int place = 0;                     // Of this one among them, from 0.
  // Only of SessionOptions::warm_up: its gradients are thrown away.
  bool warms_up = false;
};

// What a learning rate does while replicas are missing, and steps have fewer
// samples. FT-HSDP's authors found the square root best.
enum class LearningRateScaling {
  kNone,        // It stays.
  kLinear,      // As the number of samples.
  kSquareRoot,  // As its square root, as the noise of the gradient does.
};

// What to multiply the rate of a step with: 1 for one of `samples_full`. The same
// for all replicas, if `samples` is ReplicaSession::samples_of_update(). Throws
// Error unless both are positive.
double learning_rate_factor(
    LearningRateScaling scaling,
    std::int64_t samples,
    std::int64_t samples_full);

// Thread rule: one thread, the one that trains; leave() from any.
class ReplicaSession {
 public:
  // Collective over `world`, the ranks of this replica. Every replica has as many
  // ranks, equal first values, and adds the same to `state`: all that makes a
  // step what it is, parameters included. `parameters` are fp32 on the CPU, and no
  // optimizer updates them in backward. `update` makes a step of `.grad()` of
  // the parameters: clipping, schedule, optimizer; it is called for each step
  // once, also for those that this replica has missed. Throws Error for other
  // parameters, for options that make no sense, for files that cannot be read, and
  // for a host or a coordinator beyond this host without a secret or certificates.
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
  // has left, or the run had ended before it came. Waits while the coordinator is
  // away or too few replicas are there. State that was missed has been fetched when
  // it returns. Throws Error (kAborted) when the replica has no place any more: a
  // newer life of it has come, another configuration, a state that the log does not
  // know, or one of its ranks was lost; (kInvalidArgument) when its ranks do not
  // divide its samples; and what `update` throws.
  std::optional<TrainingStep> begin_step();

  // To be called before the step's last backward, the only one for most: what it
  // sums within the replica is summed across replicas while it runs. `.grad()`
  // stays undefined then. Without this word the reduction begins in finish_step().
  // Not for models in which one backward brings a parameter two gradients, such as
  // those of reentrant checkpoints: backward throws.
  void last_backward();

  // Collective. Sums what backward has put into `.grad()`, this rank's shard of the
  // mean over the replica's samples, weighted by samples, and waits for the
  // decision. True: the step is made, `update` was called. False: nothing was; the
  // next begin_step() says what to do. Throws what `update` throws, and when a
  // backward broke off.
  bool finish_step();

  // The last step that this replica has.
  std::int64_t step() const;
  // Names the state that it holds, "step 300 of " and 32 hexadecimal digits; equal
  // names are equal bits.
  std::string state_name() const;
  // Inside `update`: how many samples are in the step that it makes, over all replicas; 0 before the
  // first. All replicas see the same number for a step, whenever they make it, so that a learning
  // rate may follow it while replicas are missing.
  std::int64_t samples_of_update() const;

  // To be called at any time: the replica finishes the step it is in, then
  // begin_step() returns none. After close() it does nothing.
  void leave();

  // Collective. No more steps: waits until the others have the last one, a minute
  // at most, and ends the connections. The destructor ends them without waiting.
  // What is called afterwards throws Error (kFailedPrecondition), but for leave(),
  // close() again, and what only asks.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
