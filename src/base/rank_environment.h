// SPDX-License-Identifier: Apache-2.0
//
// The rank, world size and rendezvous address that a launcher gave this process in environment
// variables. torchrun's variables (which `sherd run` sets, too) take precedence over Open MPI's,
// and those over Slurm's; if none are set, the process is the only rank. MASTER_ADDR and
// MASTER_PORT, if set, take precedence over derived values. Parsing takes a lookup function, so
// that tests can use environments of their own. Thread rule: a value; process_environment() calls
// getenv, so no other thread may change the environment meanwhile.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace sherd {

// Returns the value of a variable, or nothing if it is unset.
using EnvironmentLookup =
    std::function<std::optional<std::string>(const char* name)>;

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  // The rank among the ranks of this host, and their number.
  int local_rank = 0;
  int local_world_size = 1;
  // Where rank 0 listens; unused if there is one rank.
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  // torchrun's agent already runs the store, so rank 0 must not start another.
  bool agent_store = false;
  // "torchrun variables", "Open MPI", "Slurm" or "none"; for messages.
  std::string source = "none";
  // SHERD_FAKE_HOST, which `sherd run --fake-hosts` sets: ranks with different numbers behave as if
  // they ran on different hosts.
  std::optional<int> fake_host{};
  // SHERD_FLIGHT_DIR, which `sherd run --flight-dir` sets: the folder, one for each replica and
  // spare, into which a rank writes the last events of its exchanges when one fails
  // (flight_recorder.h). Empty: none.
  std::string flight_folder{};
};

// The environment of this process. The library reads it only here.
EnvironmentLookup process_environment();

// Throws Error, naming the variable, what was expected and what was found, if a family of variables
// is incomplete (RANK without WORLD_SIZE), if a value is malformed or out of range, or if there are
// several hosts and no variable says where rank 0 listens. The shell of sbatch or salloc does not
// count as a rank.
RankEnvironment read_rank_environment(const EnvironmentLookup& lookup);

// RankEnvironment::flight_folder, for a process whose rank is known otherwise.
std::string read_flight_folder(const EnvironmentLookup& lookup);

}  // namespace sherd
