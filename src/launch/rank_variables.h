// SPDX-License-Identifier: Apache-2.0
//
// The environment variables of a rank, which say where it stands in the job, by the names that
// torchrun uses. Pure. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::launch {

// What a rank of a fault-tolerant job is told besides its place in its replica.
struct ReplicaVariables {
  std::string coordinator;     // host:port
  std::optional<int> replica;  // None: a spare, which learns it later.
  int replicas = 1;
  std::int64_t samples = 0;  // In a step of all replicas; 0: unknown.
  std::string secret_file;   // Empty: none.
  std::string timeouts{};    // Empty: as they are.
  int spare_fd = -1;         // Where a spare reads its replica's number.
};

struct RankVariables {
  int rank = 0;
  int ranks = 1;  // All of them on this host.
  // How many hosts the ranks are to believe they are on, divided in order; 0: this one.
  int fake_hosts = 0;
  int port = 0;     // Where rank 0 listens, on 127.0.0.1.
  int threads = 1;  // A rank's share of the cores; 0 counts as 1.
  std::optional<ReplicaVariables> of_replica{};
};

// `base` ("NAME=value" each) with these changes. Replaced: RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT; with fake hosts SHERD_FAKE_HOST; for a replica
// SHERD_COORDINATOR, SHERD_REPLICA (or SHERD_SPARE, a descriptor), SHERD_REPLICAS, SHERD_SAMPLES
// SHERD_SECRET_FILE and SHERD_TIMEOUTS. Added unless it is there: OMP_NUM_THREADS. Removed: what an enclosing
// torchrun's agent set, whose store does not know these ranks, and with a secret SHERD_TLS_*.
std::vector<std::string> variables_of_rank(
    const std::vector<std::string>& base, const RankVariables& place);

// The value of `name` among "NAME=value" entries; the first one counts, as in
// getenv.
std::optional<std::string> find_variable(
    const std::vector<std::string>& variables, std::string_view name);

}  // namespace sherd::launch
