// SPDX-License-Identifier: Apache-2.0
//
// What a launcher told this process about its place in the job. Three families
// of variables are understood, the first that is present wins: torchrun's (also
// what `sherd run` sets), Open MPI's, Slurm's. With none of them the process is
// the only rank. MASTER_ADDR and MASTER_PORT, when set, always win over what is
// derived. Parsing is a function of a lookup: tests invent environments.
// Thread rule: a value; process_environment() reads getenv, so no other thread
// may be changing the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace sherd {

// The value of a variable, or nothing when it is unset.
using EnvironmentLookup =
    std::function<std::optional<std::string>(const char* name)>;

struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  // Position among the ranks of this host, and their number.
  int local_rank = 0;
  int local_world_size = 1;
  // Where rank 0 listens. Meaningless with one rank.
  std::string master_addr = "127.0.0.1";
  int master_port = 29500;
  // torchrun's agent keeps the store already; rank 0 must not start another.
  bool agent_store = false;
  // "torchrun variables", "Open MPI", "Slurm" or "none"; for messages.
  std::string source = "none";
  // SHERD_FAKE_HOST, which `sherd run --fake-hosts` sets: ranks with different
  // numbers shall behave as if they ran on different hosts.
  std::optional<int> fake_host{};
};

// The environment of this process: the one place in the library that reads it.
EnvironmentLookup process_environment();

// Throws Error naming the variable, what was expected and what was found, when
// a family is present in part (RANK without WORLD_SIZE), a value is malformed
// or out of range, or more than one host is used and nothing says where rank 0
// listens. The shell of sbatch or salloc is no rank, only what srun starts is.
RankEnvironment read_rank_environment(const EnvironmentLookup& lookup);

}  // namespace sherd
