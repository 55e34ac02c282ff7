// SPDX-License-Identifier: Apache-2.0
#include "base/rank_environment.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>
#include "base/check.h"
#include "base/hash.h"
#include "base/text.h"

namespace sherd {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// Reads variables through a lookup and checks their ranges.
class EnvironmentReader {
 public:
  explicit EnvironmentReader(const EnvironmentLookup& lookup)
      : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) const {
    std::optional<std::string> value = lookup_(name);
    // Batch systems and wrappers export empty variables to say "not given".
    return value && value->empty() ? std::nullopt : value;
  }
  bool has(const char* name) const { return text(name).has_value(); }

  std::optional<int> integer(const char* name, int low, int high) const {
    const std::optional<std::string> value = text(name);
    if (!value) {
      return std::nullopt;
    }
    const std::optional<int> number = parse_number<int>(*value);
    SHERD_CHECK(
        number && *number >= low && *number <= high, "[base] expected ", name,
        " to be an integer", range(low, high), ", found '", *value, "'");
    return number;
  }

  int required(const char* name, const char* with, int low, int high) const {
    const std::optional<int> value = integer(name, low, high);
    SHERD_CHECK(
        value, "[base] expected ", name, " to be set because ", with,
        " is, found it unset");
    return *value;
  }

 private:
  static std::string range(int low, int high) {
    return high == INT_MAX ? str(" of at least ", low)
                           : str(" from ", low, " to ", high);
  }
  const EnvironmentLookup& lookup_;
};

// Every rank computes the same port from the job's id, without communication. The range lies below
// the usual ephemeral ports (from 32768), so outgoing connections rarely use it.
int port_of_job(const std::string& job) {
  constexpr std::uint64_t kFirst = 20000;
  constexpr std::uint64_t kCount = 10000;
  return static_cast<int>(kFirst + Hash64().add(job).value() % kCount);
}

bool one_host(const RankEnvironment& env) {
  return env.local_world_size == env.world_size;
}

void take_master(const EnvironmentReader& read, RankEnvironment* env) {
  if (const auto addr = read.text("MASTER_ADDR")) {
    env->master_addr = *addr;
  }
  if (const auto port = read.integer("MASTER_PORT", 1, 65535)) {
    env->master_port = *port;
  }
}

void take_local_of_torchrun(
    const EnvironmentReader& read, RankEnvironment* env) {
  const auto size = read.integer("LOCAL_WORLD_SIZE", 1, env->world_size);
  env->local_world_size = size.value_or(env->world_size);
  const auto local = read.integer("LOCAL_RANK", 0, env->local_world_size - 1);
  env->local_rank = local.value_or(env->rank);
  // A single unset variable is filled in only if nothing has to be guessed: all ranks are on one
  // host.
  SHERD_CHECK(
      size || env->local_rank == env->rank,
      "[base] expected LOCAL_WORLD_SIZE to be set because LOCAL_RANK ",
      env->local_rank, " differs from RANK ", env->rank,
      " (several hosts), found it unset");
  SHERD_CHECK(
      local || one_host(*env),
      "[base] expected LOCAL_RANK to be set because LOCAL_WORLD_SIZE ",
      env->local_world_size, " is less than WORLD_SIZE ", env->world_size,
      " (several hosts), found it unset");
}

RankEnvironment from_torchrun(const EnvironmentReader& read) {
  RankEnvironment env;
  env.source = "torchrun variables";
  env.world_size = read.required("WORLD_SIZE", "RANK", 1, INT_MAX);
  env.rank = read.required("RANK", "WORLD_SIZE", 0, env.world_size - 1);
  take_local_of_torchrun(read, &env);
  env.agent_store =
      read.text("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  if (env.world_size > 1) {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      SHERD_CHECK(
          read.has(name), "[base] expected ", name,
          " to be set because WORLD_SIZE is ", env.world_size,
          ", found it unset");
    }
  }
  take_master(read, &env);
  return env;
}

RankEnvironment from_open_mpi(const EnvironmentReader& read) {
  constexpr const char* kRank = "OMPI_COMM_WORLD_RANK";
  constexpr const char* kSize = "OMPI_COMM_WORLD_SIZE";
  RankEnvironment env;
  env.source = "Open MPI";
  env.world_size = read.required(kSize, kRank, 1, INT_MAX);
  env.rank = read.required(kRank, kSize, 0, env.world_size - 1);
  env.local_world_size =
      read.integer("OMPI_COMM_WORLD_LOCAL_SIZE", 1, env.world_size)
          .value_or(env.world_size);
  env.local_rank =
      read.integer("OMPI_COMM_WORLD_LOCAL_RANK", 0, env.local_world_size - 1)
          .value_or(env.rank);
  SHERD_CHECK(
      one_host(env) || read.has("MASTER_ADDR"),
      "[base] expected MASTER_ADDR to name the host of rank 0 because Open "
      "MPI runs ",
      env.local_world_size, " of ", env.world_size,
      " ranks on this host, found it unset (mpirun -x MASTER_ADDR=...)");
  std::string job;
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}) {
    if (job.empty()) {
      job = read.text(name).value_or("");
    }
  }
  env.master_port = port_of_job("Open MPI " + job);
  take_master(read, &env);
  return env;
}

// Parses "4", "2(x3),1": the number of tasks on each node, in the order of nodes. An entry that
// cannot be parsed ends the list, because the caller has a default.
std::vector<int> parse_tasks_per_node(std::string_view text) {
  constexpr int kNodesMax = 1 << 20;  // Limits what a malformed count costs.
  std::vector<int> tasks;
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    const auto open = entry.find("(x");
    const auto count = parse_number<int>(entry.substr(0, open));
    std::optional<int> nodes = 1;
    if (open != std::string_view::npos && entry.ends_with(")")) {
      nodes =
          parse_number<int>(entry.substr(open + 2, entry.size() - open - 3));
    }
    if (!count || !nodes || *nodes < 1 || *nodes > kNodesMax) {
      break;
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(*nodes), *count);
  }
  return tasks;
}

// "node[03-05,7],x" -> "node03". Returns nothing for less simple lists, such as a name that
// continues after the bracket.
std::optional<std::string> first_host(const std::string& nodes) {
  const auto open = nodes.find_first_of("[,");
  if (open == std::string::npos || nodes[open] == ',') {
    return nodes.substr(0, open);
  }
  const auto close = nodes.find(']', open);
  const bool plain = close != std::string::npos &&
      (close + 1 == nodes.size() || nodes[close + 1] == ',');
  const auto end = nodes.find_first_of("-,]", open);
  if (!plain || end == open + 1) {
    return std::nullopt;
  }
  return nodes.substr(0, open) + nodes.substr(open + 1, end - open - 1);
}

std::optional<std::string> slurm_master(const EnvironmentReader& read) {
  // Rank 0 runs on the first node of the step. srun's own address comes last, because srun may run
  // on a login node.
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"}) {
    const std::optional<std::string> nodes = read.text(name);
    const auto host = nodes ? first_host(*nodes) : std::nullopt;
    if (host) {
      return host;
    }
  }
  return read.text("SLURM_LAUNCH_NODE_IPADDR");
}

int slurm_local_world_size(const EnvironmentReader& read, int world_size) {
  const int node = read.integer("SLURM_NODEID", 0, INT_MAX).value_or(0);
  for (const char* name :
       {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto tasks = parse_tasks_per_node(read.text(name).value_or(""));
    if (static_cast<std::size_t>(node) < tasks.size()) {
      return std::clamp(tasks[static_cast<std::size_t>(node)], 1, world_size);
    }
  }
  // The user's request, which is right unless the last node is not full.
  return std::min(
      read.integer("SLURM_NTASKS_PER_NODE", 1, INT_MAX).value_or(world_size),
      world_size);
}

RankEnvironment from_slurm(const EnvironmentReader& read) {
  RankEnvironment env;
  env.source = "Slurm";
  env.world_size = read.required("SLURM_NTASKS", "SLURM_PROCID", 1, INT_MAX);
  env.rank =
      read.required("SLURM_PROCID", "SLURM_NTASKS", 0, env.world_size - 1);
  env.local_world_size = slurm_local_world_size(read, env.world_size);
  env.local_rank = read.integer("SLURM_LOCALID", 0, env.world_size - 1)
                       .value_or(env.rank % env.local_world_size);
  SHERD_CHECK(
      env.local_rank < env.local_world_size, "[base] expected SLURM_LOCALID ",
      "to be less than the tasks on this node, ", env.local_world_size,
      ", found '", env.local_rank, "'");
  const auto master = one_host(env) ? kLoopback : slurm_master(read);
  SHERD_CHECK(
      master || read.has("MASTER_ADDR"),
      "[base] expected MASTER_ADDR to name the host of rank 0 because ",
      "SLURM_JOB_NODELIST does not say it plainly, found it unset");
  env.master_addr = master.value_or("");
  env.master_port = port_of_job(
      "Slurm " + read.text("SLURM_JOB_ID").value_or("") + "." +
      read.text("SLURM_STEP_ID").value_or(""));
  take_master(read, &env);
  return env;
}

// The shells that sbatch and salloc start also have SLURM_PROCID=0 and the job's SLURM_NTASKS,
// although no ranks run yet. A batch script has no step (what srun starts from it inherits
// ENVIRONMENT=BATCH but has a step); an interactive shell has a step with a reserved number.
bool slurm_shell(const EnvironmentReader& read) {
  constexpr std::string_view kInteractiveStep = "4294967290";
  constexpr std::string_view kBatchStep = "4294967291";
  const std::string step = read.text("SLURM_STEP_ID").value_or("");
  const bool batch = read.text("ENVIRONMENT").value_or("") == "BATCH";
  return (batch && step.empty()) || step == kInteractiveStep ||
      step == kBatchStep;
}

RankEnvironment from_launcher(const EnvironmentReader& read) {
  if (read.has("RANK") || read.has("WORLD_SIZE")) {
    return from_torchrun(read);
  }
  if (read.has("OMPI_COMM_WORLD_RANK") || read.has("OMPI_COMM_WORLD_SIZE")) {
    return from_open_mpi(read);
  }
  if (read.has("SLURM_PROCID") && !slurm_shell(read)) {
    return from_slurm(read);
  }
  return {};
}

}  // namespace

EnvironmentLookup process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): see the header's thread rule.
    const char* value = std::getenv(name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
}

RankEnvironment read_rank_environment(const EnvironmentLookup& lookup) {
  const EnvironmentReader read(lookup);
  RankEnvironment env = from_launcher(read);
  env.fake_host = read.integer("SHERD_FAKE_HOST", 0, env.world_size - 1);
  env.flight_folder = read_flight_folder(lookup);
  return env;
}

std::string read_flight_folder(const EnvironmentLookup& lookup) {
  const EnvironmentReader read(lookup);
  const auto folder = read.text("SHERD_FLIGHT_DIR");
  if (!folder) {
    return "";
  }
  if (const auto replica = read.text("SHERD_REPLICA")) {
    return str(*folder, "/replica-", *replica);
  }
  const auto spare = read.text("SHERD_SPARE_GROUP");
  return spare ? str(*folder, "/spare-", *spare) : *folder;
}

}  // namespace sherd
