// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of replicas, for when all of them are lost. Replicas take turns at saving the state
// that all of them have, and each begins with the newest checkpoint there is:
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
// A disk that fails costs a checkpoint but no step. Concepts: docs/guide/fault_tolerance.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ft/replica_session.h>
#include <sherd/world/world.h>

namespace sherd::ft {

// The key in CheckpointContent::values that names the state of the run. Only checkpoints of
// replicas have it.
inline constexpr const char* kReplicaState = "ft.state";

struct ReplicaCheckpointOptions {
  // The same for all replicas, on a disk that they share. If each host has its own disk, a replica
  // finds what was saved on its host.
  std::string folder;
  // Steps between two checkpoints. 0: only save() makes them. From its first turn on, each replica
  // keeps a copy of its state, and that copy is what it writes.
  std::int64_t save_every = 0;
  // How many checkpoints are kept when a new one is complete. 0: all.
  int keep_last = 2;
};

// Thread rule: one thread, the one that trains.
class ReplicaCheckpoints {
 public:
  // Collective over `world`, the ranks of this replica, which must outlive it. `state` is that of
  // the session. Makes the folder. Throws Error if the folder cannot be made or options make no
  // sense.
  ReplicaCheckpoints(
      const World& world,
      CheckpointState state,
      const ReplicaCheckpointOptions& options);
  ReplicaCheckpoints(const ReplicaCheckpoints&) = delete;
  ReplicaCheckpoints& operator=(const ReplicaCheckpoints&) = delete;
  // Waits until this rank has written its part of a save that is under way.
  ~ReplicaCheckpoints();

  // Collective, before the session: reads the newest readable checkpoint into the state. Returns
  // the value for SessionOptions::held. It is empty if there is no checkpoint yet, or only an
  // imported one, whose values training begins with. Throws Error if there are checkpoints but none
  // can be read, for instance because they belong to another model; it says what is wrong with the
  // newest.
  std::string load();

  // Collective, after begin_step(). If a checkpoint is due and it is this replica's turn, copies
  // the state, which a thread writes while training goes on. A failure is only a warning. One save
  // runs at a time: if the last one is still being written, this one is skipped with a warning.
  // The first call throws Error (kInvalidArgument) if replicas of another run save into the folder.
  void save_if_due(const ReplicaSession& session, const TrainingStep& step);

  // Collective, between two steps or after the last one. Saves at once, whichever replica's turn it
  // is, unless another replica has already saved the same step; what save_if_due() failed to save
  // is tried again. Initial values are not saved. Throws Error (kFailedPrecondition) inside the
  // session's `update`.
  void save(const ReplicaSession& session);

  // Collective. Waits until a save that is under way is complete. Throws Error if the last one
  // failed: the run then ends without its last checkpoint, unless another replica has saved it.
  // If another replica is still writing after the time that SaveOptions::shared allows, that is
  // only a warning.
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
