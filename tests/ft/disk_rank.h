// SPDX-License-Identifier: Apache-2.0
//
// A process that is one rank of a replica with checkpoints on a disk: a small model, a
// ReplicaSession and ReplicaCheckpoints, as in a user's program. A test can order what the disk
// does to its checkpoints. It reports what it holds and does in lines. On devices a process is a
// whole replica, whose ranks are threads. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include "ft/shared_number.h"

namespace sherd::ft::test {

enum class DiskFault {
  kNone,
  kFull,              // Nothing can be written any more.
  kKillInWrite,       // The process dies with half of the write done,
  kKillBeforeRename,  // or with all of it done, but before the rename.
  kHang,              // Writes do not return until `release` is closed.
};

struct DiskRankOptions {
  int replica = 0;
  int replicas = 1;
  int rank = 0;
  int ranks = 1;
  // Whether this process runs all ranks, each on a checking device.
  // Where the ranks of the replica meet.
  bool on_devices = false;
  int port = 0;
  int life = 1;
  std::int64_t steps = 0;
  std::int64_t save_every = 5;
  int keep = 0;  // 0 keeps all.
  std::string coordinator;
  std::string folder;
  int width = 16;            // The width of the model.
  std::int64_t nan_at = 0;   // The step whose gradients are NaN,
  std::int64_t flip_at = 0;  // or the one after which a parameter is wrong.
  DiskFault fault = DiskFault::kNone;
  std::string fault_at;  // A part of the affected paths.
  // How many processes the fault may still kill.
  SharedNumber* kills_left = nullptr;
  int release = -1;  // A descriptor.
  int tell = -1;     // Another descriptor.
};

// It reports "REPLICA RANK LIFE WHAT ...", where WHAT is "loaded" or "holds", with a hash and the
// name of a state, "made" with a step, "done", or "failed" with a sentence.
int run_disk_rank(const DiskRankOptions& options);

}  // namespace sherd::ft::test
