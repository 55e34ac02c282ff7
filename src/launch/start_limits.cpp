// SPDX-License-Identifier: Apache-2.0
#include "launch/start_limits.h"

#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include "base/check.h"

namespace sherd::launch {
namespace {

// The user's terminal, signals, the control socket, a lock, reserved ports, and logs being opened.
constexpr std::uint64_t kDescriptorsOfLauncher = 24;
// The descriptor of its end, stdout, stderr, and the one a spare waits for.
constexpr std::uint64_t kDescriptorsOfProcess = 4;
// A rank has a store, connections to its siblings and, in replicas, a loop, a ring and transfers.
constexpr std::uint64_t kDescriptorsMin = 64;
// A small shell needs this much.
constexpr std::uint64_t kBytesOfProcess = std::uint64_t{1} << 20U;

// The number in a file; kNoLimit if it has none, or "max".
std::uint64_t number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  return file >> number ? number : kNoLimit;
}

// In a container the root is the cgroup of this process.
std::uint64_t processes_left_in_cgroup() {
  const std::uint64_t limit = number_in("/sys/fs/cgroup/pids.max");
  const std::uint64_t now = number_in("/sys/fs/cgroup/pids.current");
  return limit == kNoLimit || now == kNoLimit ? kNoLimit
                                              : limit - std::min(limit, now);
}

std::uint64_t free_memory() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream in(line);
    std::string name;
    std::uint64_t kibibytes = 0;
    if (in >> name >> kibibytes && name == "MemAvailable:") {
      return kibibytes * 1024;
    }
  }
  return kNoLimit;
}

std::uint64_t limit_of(__rlimit_resource resource) {
  rlimit limit = {};
  return ::getrlimit(resource, &limit) == 0 && limit.rlim_max != RLIM_INFINITY
      ? limit.rlim_max
      : kNoLimit;
}

}  // namespace

HostResources needs_of_job(std::int64_t groups, std::int64_t processes) {
  const auto count = static_cast<std::uint64_t>(processes);
  return {
      .descriptors = std::max(
          kDescriptorsOfLauncher + count * kDescriptorsOfProcess +
              static_cast<std::uint64_t>(groups),
          kDescriptorsMin),
      .processes = count,
      .memory_bytes = count * kBytesOfProcess};
}

std::string exceeded_limit(
    const HostResources& needs, const HostResources& limits) {
  const std::string of_job =
      str(" for ", needs.processes, " processes, found ");
  if (limits.descriptors < needs.descriptors) {
    return str(
        "expected a limit of at least ", needs.descriptors, " open files",
        of_job, limits.descriptors, "; raise it with `ulimit -n ",
        needs.descriptors, "`, or start fewer");
  }
  if (limits.processes < needs.processes) {
    return str(
        "expected room", of_job, "room for ", limits.processes,
        " more; start fewer, or raise the limit of processes (ulimit -u, "
        "pids.max, kernel.pid_max)");
  }
  if (limits.memory_bytes < needs.memory_bytes) {
    return str(
        "expected at least ", kBytesOfProcess >> 20U,
        " MiB of free memory for each of ", needs.processes,
        " processes, found ", limits.memory_bytes >> 20U,
        " MiB for all; start fewer");
  }
  return {};
}

HostResources host_limits() {
  HostResources limits;
  limits.descriptors = limit_of(RLIMIT_NOFILE);
  limits.processes = std::min(
      {processes_left_in_cgroup(), number_in("/proc/sys/kernel/pid_max"),
       // The limit does not apply to root.
       ::geteuid() == 0 ? kNoLimit : limit_of(RLIMIT_NPROC)});
  // The usage of a cgroup includes its page cache, which makes room when needed.
  limits.memory_bytes =
      std::min(free_memory(), number_in("/sys/fs/cgroup/memory.max"));
  return limits;
}

StartStatus make_room(const HostResources& needs) {
  const std::string exceeded = exceeded_limit(needs, host_limits());
  if (!exceeded.empty()) {
    return {1, exceeded};
  }
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
      limit.rlim_cur < needs.descriptors) {
    limit.rlim_cur = needs.descriptors;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);  // The hard limit allows it.
  }
  return {};
}

}  // namespace sherd::launch
