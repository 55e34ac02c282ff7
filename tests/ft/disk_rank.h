// SPDX-License-Identifier: Apache-2.0
//
// A process that is one rank of a replica with checkpoints on a disk: a small
// model, a ReplicaSession and ReplicaCheckpoints, as a user has them. What the
// disk does to its checkpoints a test can order. It tells what it holds and does
// in lines. On devices a process is a whole replica, whose ranks are threads.
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <string>
#include "ft/shared_number.h"

namespace sherd::ft::test {

enum class DiskFault {
  kNone,
  kFull,              // Nothing can be written any more.
  kKillInWrite,       // The process dies with half of it written,
  kKillBeforeRename,  // or with all of it written, but in place.
  kHang,              // Nothing comes back, until `release` is closed.
};

struct DiskRankOptions {
  int replica = 0;
  int replicas = 1;
  int rank = 0;
  int ranks = 1;
  bool on_devices = false;  // All ranks, each on a checking device.
  int port = 0;             // Where the ranks of the replica meet.
  int life = 1;
  std::int64_t steps = 0;
  std::int64_t save_every = 5;
  int keep = 0;  // All.
  std::string coordinator;
  std::string folder;
  int width = 16;            // Of the model.
  std::int64_t nan_at = 0;   // Step of which the gradients are not numbers,
  std::int64_t flip_at = 0;  // or after which a parameter is wrong.
  DiskFault fault = DiskFault::kNone;
  std::string fault_at;  // Part of the paths that it concerns.
  // How many processes it may still kill.
  SharedNumber* kills_left = nullptr;
  int release = -1;  // A descriptor.
  int tell = -1;     // Another one.
};

// What it tells: "REPLICA RANK LIFE WHAT ...", where WHAT is "loaded" or "holds",
// with a hash and the name of a state, "made" with a step, "done", or "failed"
// with a sentence.
int run_disk_rank(const DiskRankOptions& options);

}  // namespace sherd::ft::test
