// SPDX-License-Identifier: Apache-2.0
//
// Fault-tolerant training: several replicas of a model, each of one or more ranks with a World of
// their own, train in lock step. A replica may die, hang or be cut off while the others go on, and
// come back while they train.
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
//     if (!step->samples.empty()) {  // Otherwise this replica only follows.
//       auto loss = model->loss(rows(step->samples));  // One batch of all.
//       session.last_backward();
//       loss.backward();
//     }
//     session.finish_step();
//   }
//
// Gradients are summed across replicas, and a step is made only when the coordinator (`sherd
// coordinate`) has committed it, so replicas that have the same step have the same bits. A failure
// costs the others one repeated all-reduce, but no forward or backward. Related work: FT-HSDP,
// arXiv 2602.00277. How it works: docs/design/fault_tolerance.md, docs/guide/fault_tolerance.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ft/session_types.h>
#include <sherd/optim/named_parameters.h>
#include <sherd/world/world.h>

namespace sherd::ft {

struct SessionOptions {
  // ---- behaviour ----

  // Where `sherd coordinate` listens, "host:port".
  std::string coordinator;
  // The number of this replica, from 0 to 4095; each replica has its own.
  int replica = 0;
  // The number of replicas that the job is meant to have. Only the program uses it.
  int replicas = 1;
  // An address of this host at which the other replicas reach it. Empty: the one from which it
  // reaches the coordinator.
  std::string host;
  // How coordinator and replicas authenticate each other: by the file of a secret that all of them
  // have, or by a certificate with the name "sherd-replica", its key and the certificate of the
  // common authority (PEM files). Without either, all must be on one host.
  std::string secret_file;
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_authority;
  // A text that must be the same for all replicas; a replica with another text is refused.
  std::string config;
  // What ReplicaCheckpoints::load() returned: the name of the state with which this replica begins.
  // Empty: it begins with the initial values.
  std::string held;
  // The number of samples in a step when no replica is missing. 0: unknown.
  std::int64_t samples_full = 0;
  // What happens if a gradient, on any rank of the replica, has an element that is infinite or NaN.
  // The check reads each gradient once, when it is copied.
  GradientPolicy non_finite_gradients = GradientPolicy::kLeaveOut;
  // What happens if the norm of the gradients on a rank is more than norm_ratio_max times its
  // moving average in this process, for example because memory is damaged. With a ratio of 0 no
  // norm is too large.
  GradientPolicy outlier_gradients = GradientPolicy::kLeaveOut;
  double norm_ratio_max = 1e4;
  // While a process has to fetch a state, it computes gradients of the initial values, from samples
  // like those of the others. Work that a program does only once, such as compiling, is thus done
  // before the others wait for this process. The first begin_step() says so (`warms_up`), and
  // finish_step() returns false. Whatever forward changes as a side effect, such as running
  // statistics, changes once more.
  bool warm_up = false;
  // Replicas compare digests of their parameters each time this many steps have passed. A replica
  // that differs from the majority drops its state and copies another's. If there is no majority,
  // training stops. Each comparison reads the parameters once. 0: never.
  int digest_every = 100;
  SessionTimeouts timeouts;
  // ---- performance ----

  // The number of past steps whose sums are kept for replicas that lack them. Each takes the memory
  // of this rank's gradients, and each step copies the gradients once. With 0, a replica that
  // missed a step fetches a whole state.
  int sums_kept = 2;
  // While another replica catches up, at most this many bytes of sums are kept; while this replica
  // catches up, it collects as many. A replica can only catch up if fetching its state takes no
  // longer than the steps whose sums are kept on both sides together.
  std::int64_t sums_bytes_max = std::int64_t{4} << 30U;
  // The total rate at which replicas that catch up may fetch this rank's state, in bytes per
  // second. 0: no limit. The default costs a twentieth of one core's time. A replica fetches from
  // up to four others at once. There is no limit for sums.
  std::int64_t fetch_bytes_per_s_max = 50'000'000;

  // Reads SHERD_COORDINATOR and SHERD_REPLICA and, if they are set, SHERD_REPLICAS, SHERD_SAMPLES
  // (samples_full), SHERD_HOST, SHERD_SECRET_FILE, SHERD_TLS_CERT, SHERD_TLS_KEY, SHERD_TLS_CA and
  // SHERD_TIMEOUTS ("leave=10,fetch=2.5": names of SessionTimeouts, in seconds). `sherd run
  // --fault-tolerant` sets those that it knows. A spare (SHERD_SPARE) waits here until it takes the
  // place of a replica, so call this when everything else is ready. Throws Error if a variable is
  // missing or not a number.
  static SessionOptions from_environment();
};

// Samples [begin, end) of the run's endless order, in which each sample belongs to one committed
// step.
struct SampleSpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

struct TrainingStep {
  std::int64_t step = 0;  // The step to be made, counted from 1.
  // The samples of this rank; each rank of the replica has equally many. Empty: the replica only
  // follows this step and computes nothing. After failures the samples may lie in several spans,
  // and in more spans on one rank than on another, so make one batch of them, or micro-batches
  // whose number depends only on how many samples there are.
  std::vector<SampleSpan> samples;
  std::int64_t replica_samples = 0;  // Those of all ranks of this replica.
  int replicas = 0;  // In this step, including those that only follow.
  int place = 0;     // This replica's index among them, from 0.
  // Only with SessionOptions::warm_up: the gradients of this step are thrown away.
  bool warms_up = false;
};

// How the learning rate changes while replicas are missing and steps have fewer samples. The
// authors of FT-HSDP found the square root to work best.
enum class LearningRateScaling {
  kNone,    // It does not change.
  kLinear,  // In proportion to the number of samples.
  // In proportion to its square root, like the noise of the gradient.
  kSquareRoot,
};

// The factor for the learning rate of a step of `samples` samples; 1 if they are `samples_full`. It
// is the same on all replicas if `samples` is ReplicaSession::samples_of_update(). Throws Error
// unless both numbers are positive.
double learning_rate_factor(
    LearningRateScaling scaling,
    std::int64_t samples,
    std::int64_t samples_full);

// Thread rule: the thread that trains; leave() from any.
class ReplicaSession {
 public:
  // Collective over `world`, the ranks of this replica. Every replica has as many ranks and equal
  // initial values, and adds the same to `state`: everything that determines a step, parameters
  // included. `parameters` are fp32, all on the CPU or on one device, and no optimizer updates them
  // in backward. `update` makes a step from `.grad()` of the parameters: clipping, schedule,
  // optimizer. It is called once for each step, also for those that this replica has missed. Throws
  // Error for other parameters, if options make no sense, if a file cannot be read, if the host
  // or the coordinator is not on this host and there is neither a secret nor certificates, if the
  // coordinator is on another host and options.host is a loopback address, and (kUnavailable) if
  // options.host is empty and no address of this host leads to the coordinator.
  ReplicaSession(
      const World& world,
      const NamedParameters& parameters,
      CheckpointState state,
      std::function<void(std::int64_t step)> update,
      const SessionOptions& options);
  ReplicaSession(const ReplicaSession&) = delete;
  ReplicaSession& operator=(const ReplicaSession&) = delete;
  ~ReplicaSession();

  // Collective. Returns what to compute next, with `.grad()` cleared, or nothing if the replica has
  // left or the run ended before it joined. Waits while the coordinator is away or there are too
  // few replicas. If the replica lacked state, it has fetched it when this returns. Throws Error
  // (kAborted) if the replica can no longer take part: a newer process has the same replica number,
  // or one of its ranks was lost. Throws Error (kInvalidArgument) if starting the program again
  // would not help: the configuration differs, the log does not know the state that was loaded, a
  // newer process on another host has the same replica number, or the samples cannot be divided
  // among its ranks. Also throws what `update` throws.
  std::optional<TrainingStep> begin_step();

  // Call it before the last backward of a step (most programs have only one): gradients are then
  // summed across replicas while this backward runs, and nobody may use `.grad()` before `update`.
  // Without this call the reduction begins in finish_step(). It also does so if parameters are on a
  // device, where gradients are first copied to the host. Do not call it for models in which one
  // backward gives a parameter two gradients, as reentrant checkpoints do: backward throws.
  void last_backward();

  // Collective. Sums what backward has put into `.grad()`, this rank's shard of the mean over the
  // replica's samples, weighted by samples, and waits for the decision. Returns true if the step
  // was made and `update` was called. Returns false if nothing was changed; the next begin_step()
  // then says what to do. A parameter of which no replica has a gradient has none in `update`,
  // either. Throws what `update` throws. Throws Error (kFailedPrecondition) if a backward did not
  // end: the step is then made without the gradients of all ranks of this replica, as with
  // GradientPolicy::kLeaveOut, and begin_step() goes on. If the program is interrupted while this
  // waits (sherd/base/run_main.h), it throws Error (kAborted), and the step may still be made: the
  // next begin_step() or close() then calls `update` for it.
  bool finish_step();

  // Runs `work`, something that is not part of a step, between begin_step() and finish_step(): an
  // evaluation or a copy of values. A replica that takes much longer than usual for a part of a step
  // is taken for one that hangs; for `work` it has a minute, as between steps
  // (--first-hang-after). Throws what `work` throws.
  void other_work(const std::function<void()>& work) const;

  // The number of the run, which all its replicas share; 0 before the first begin_step().
  std::uint64_t run() const;
  // The last step that this replica has made.
  std::int64_t step() const;
  // False inside `update`, where the state may be half a step, and once `update` has thrown. In that
  // case the session has ended, the other replicas train on, and this process should be started
  // again, to fetch their state.
  bool state_is_known() const;
  // The name of the state that this replica has: "step 300 of " and 32 hexadecimal digits. Equal
  // names mean equal bits of what `update` changes. Throws Error (kFailedPrecondition) unless
  // state_is_known().
  std::string state_name() const;
  // Inside `update`: how many samples are in the step being made, over all replicas; 0 before the
  // first. All replicas see the same number for a step, whenever they make it, so a learning rate
  // may follow it while replicas are missing.
  std::int64_t samples_of_update() const;

  // May be called at any time: the replica finishes its current step, and then begin_step() returns
  // nothing. After close() it has no effect.
  void leave();

  // Collective. Ends the session: waits until the others have the last step, for at most
  // timeouts.linger, and closes the connections. The destructor closes them without waiting.
  // Afterwards all methods throw Error (kFailedPrecondition), except leave(), close() and those
  // that only return a value.
  void close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
