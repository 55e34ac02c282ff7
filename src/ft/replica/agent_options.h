// SPDX-License-Identifier: Apache-2.0
//
// The options of a replica's agents: of the agent of a rank, and of that in rank 0, which also leads
// the replica. Thread rule: values.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>
#include <sherd/ft/session_types.h>
#include "base/clock.h"
#include "ft/protocol/identity.h"
#include "net/host_address.h"
#include "net/security.h"

namespace sherd::ft {

struct RankAgentOptions {
  // Hooks for failure tests; empty ones cost nothing.
  struct TestHooks {
    // Called at named points: in the program's thread at "given", "committed", "applied",
    // "offered", "installing" and "installed"; in the loop at "joined" (with the number of the
    // epoch), "reducing", "reduced", "voted" and "fetching"; in the leader's thread at "beat" (with
    // its number).
    std::function<void(const char* point, std::int64_t step)> reach;
    // May change the sum of this step before its digest is computed; returns whether it did.
    std::function<bool(std::int64_t step, float* sum)> spoil;
    // Replaces the port of a counterpart.
    std::function<std::uint16_t(ReplicaId to, std::uint16_t port)> route;
  };

  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  int shard_rank = 0;

  // ---- behaviour ----

  // An address of this host at which counterparts reach this rank.
  std::string host = "127.0.0.1";
  net::Security security{};
  SessionTimeouts timeouts{};
  // The number of elements of this rank's gradients in each bucket; the same at its counterparts.
  std::vector<std::int64_t> buckets;
  // What each bucket contains, for hang reports; may be empty.
  std::vector<std::string> bucket_names{};
  // The program's digest is compared with those of the other replicas once in this many steps; 0
  // turns this off.
  int digest_every = 0;

  // ---- performance ----

  // Memory for the gradients and, behind them, their sum: twice as many floats as all buckets have.
  // It must outlive the agent. If empty, the agent allocates memory that counterparts on this host
  // read in place if they share theirs, too.
  std::span<float> memory{};
  // As TransferServerOptions'. sums_bytes_max also limits what this rank collects while it catches
  // up.
  int sums_kept = 2;
  std::uint64_t sums_bytes_max = std::uint64_t{4} << 30U;
  // The rate at which others may fetch states from this rank; 0 means no limit.
  std::uint64_t fetch_bytes_per_s_max = 0;
  TestHooks hooks{};
};

struct ReplicaAgentOptions {
  RankAgentOptions rank;
  int ranks = 1;  // How many ranks the replica has.

  // ---- only rank 0 uses these ----
  net::HostAddress coordinator;
  // A hash of what all replicas must have in common. Never 0.
  std::uint64_t config = 1;
  StateId held;
  // Whether ranks compute a warm-up while they fetch their first state.
  bool warms_up = false;
  // A rank that has connected must have sent its number by then.
  Duration hello_timeout = std::chrono::seconds(5);
};

}  // namespace sherd::ft
