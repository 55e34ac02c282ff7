// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of replicas, for when all of them are lost. One replica after
// another saves what all hold, and each begins with the newest there is:
//
//   sherd::ft::ReplicaCheckpoints checkpoints(
//       world, state, {.folder = "run/checkpoints", .save_every = 100});
//   auto options = sherd::ft::SessionOptions::from_environment();
//   options.held = checkpoints.load();
//   sherd::ft::ReplicaSession session(world, parameters, state, update, options);
//   while (auto step = session.begin_step()) {
//     checkpoints.save_if_due(session, *step);
//     ...
//   }
//   checkpoints.save(session);
//   session.close();
//   checkpoints.wait();
//
// A disk that fails costs a checkpoint and no step. Concepts:
// docs/guide/fault_tolerance.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ft/replica_session.h>
#include <sherd/world/world.h>

namespace sherd::ft {

// The entry of CheckpointContent::values that names the state of the run; only checkpoints of
// replicas have it.
inline constexpr const char* kReplicaState = "ft.state";

struct ReplicaCheckpointOptions {
  // The same for all replicas, on a disk that they share. If each host has its
  // own disk, a replica finds what was saved on its host.
  std::string folder;
  // Steps between two checkpoints; 0: only save() makes them. From its first
  // turn on, each replica keeps a copy of its state, which is what it writes.
  std::int64_t save_every = 0;
  // How many checkpoints are kept when another one is complete; 0: all.
  int keep_last = 2;
};

// Thread rule: one thread, the one that trains.
class ReplicaCheckpoints {
 public:
  // Collective over `world`, the ranks of this replica, which must outlive it.
  // `state` is that of the session. Makes the folder. Throws Error when it cannot
  // be made, and for options that make no sense.
  ReplicaCheckpoints(
      const World& world,
      CheckpointState state,
      const ReplicaCheckpointOptions& options);
  ReplicaCheckpoints(const ReplicaCheckpoints&) = delete;
  ReplicaCheckpoints& operator=(const ReplicaCheckpoints&) = delete;
  // Waits until this rank's part of what is being saved is written.
  ~ReplicaCheckpoints();

  // Collective, before the session: reads the newest one that can be read into the
  // state. Returns what SessionOptions::held is to be; empty where there is none
  // yet, or only an imported one, whose values training begins with. Throws Error,
  // naming what is wrong with the newest, when there are some and none can be
  // read, as when they are of another model.
  std::string load();

  // Collective, after begin_step(). When a checkpoint is due and it is this
  // replica's turn, copies the state, which a thread writes beside training. What
  // fails is a warning. One at a time: when the last one is still being written,
  // this one is left out, with a warning.
  void save_if_due(const ReplicaSession& session, const TrainingStep& step);

  // Collective, between two steps or after the last one. Saves at once,
  // whichever replica's turn it is. What another replica has saved meanwhile is
  // not saved again.
  void save(const ReplicaSession& session);

  // Collective. Waits until what is being saved is complete or has failed.
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
