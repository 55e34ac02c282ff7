// SPDX-License-Identifier: Apache-2.0
//
// The environment variables of a rank, which define its place in the job, with the names that
// torchrun uses. Pure functions. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::launch {

// What a rank of a fault-tolerant job needs besides its place in its replica.
struct ReplicaVariables {
  std::string coordinator;     // host:port
  std::optional<int> replica;  // Nullopt for a spare, which learns it later.
  int replicas = 1;
  std::int64_t samples = 0;  // In a step of all replicas; 0 if unknown.
  std::string secret_file;   // Empty if there is none.
  // Whether SHERD_SECRET_FILE stays as it is if `secret_file` is empty: it may be the secret of a
  // coordinator that runs elsewhere.
  bool keeps_secret = false;
  std::string timeouts{};  // Empty for the defaults.
  int spare = 0;           // The number of a spare.
  int spare_fd = -1;       // From which a spare reads its replica's number.
};

struct RankVariables {
  int rank = 0;
  int ranks = 1;  // All of them on this host.
  // The number of hosts on which the ranks are to believe they run, divided in order; 0 means this
  // host.
  int fake_hosts = 0;
  int port = 0;     // The port where rank 0 listens, on 127.0.0.1.
  int threads = 1;  // A rank's share of the cores; 0 counts as 1.
  std::optional<ReplicaVariables> of_replica{};
};

// Returns `base` ("NAME=value" each) with these changes. Replaced: RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; with fake hosts SHERD_FAKE_HOST; for a replica
// SHERD_COORDINATOR, SHERD_REPLICA (or SHERD_SPARE, a descriptor, and SHERD_SPARE_GROUP),
// SHERD_REPLICAS, SHERD_SAMPLES, SHERD_SECRET_FILE and SHERD_TIMEOUTS. Added unless it is set:
// OMP_NUM_THREADS. Removed: what an enclosing torchrun's agent has set, since its store does not
// know these ranks, the fake host of an enclosing rank, and with a secret SHERD_TLS_*.
std::vector<std::string> variables_of_rank(
    const std::vector<std::string>& base, const RankVariables& place);

// The value of `name` among "NAME=value" entries; the first one counts, as in getenv.
std::optional<std::string> find_variable(
    const std::vector<std::string>& variables, std::string_view name);

}  // namespace sherd::launch
