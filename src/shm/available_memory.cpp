// SPDX-License-Identifier: Apache-2.0
#include "shm/available_memory.h"

#include <fstream>
#include <sstream>
#include <vector>
#include "base/check.h"

namespace sherd::shm {
namespace {

constexpr std::uint64_t kKiB = 1024;

// The number after `name` at the start of a line of `text`.
std::optional<std::uint64_t> field(
    const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string first;
    std::uint64_t value = 0;
    if (words >> first && first == name && words >> value) {
      return value;
    }
  }
  return std::nullopt;
}

// The number in a file; nothing for "max".
std::optional<std::uint64_t> number_in(
    const ReadFile& read_file, const std::string& path) {
  std::istringstream text(read_file(path).value_or(""));
  std::uint64_t value = 0;
  return text >> value ? std::optional(value) : std::nullopt;
}

std::uint64_t minus(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : 0;
}

void keep_least(std::optional<AvailableMemory>& least, AvailableMemory found) {
  if (!least || found.bytes < least->bytes) {
    least = std::move(found);
  }
}

struct GroupFiles {
  std::string limit;
  std::string used;
  // Lines of memory.stat: cached files, also those read more than once. Memory
  // of segments is not among them.
  std::vector<std::string> reclaimable;
};

// A group's limit also applies to the groups below it, so this looks at all of them up to the root.
void look_at_groups(
    const ReadFile& read_file,
    const std::string& mount,
    std::string group,
    const GroupFiles& files,
    std::optional<AvailableMemory>& least) {
  while (!group.empty() && group.back() == '/') {
    group.pop_back();
  }
  for (;;) {
    const std::string folder = str(mount, group, "/");
    const auto limit = number_in(read_file, folder + files.limit);
    const auto used = number_in(read_file, folder + files.used);
    if (limit && used) {
      const std::string stat = read_file(folder + "memory.stat").value_or("");
      std::uint64_t cached = 0;
      for (const std::string& name : files.reclaimable) {
        cached += field(stat, name).value_or(0);
      }
      keep_least(
          least,
          {.bytes = minus(*limit, minus(*used, cached)),
           .source = folder + files.limit});
    }
    if (group.empty()) {
      return;
    }
    const auto slash = group.rfind('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
}

}  // namespace

std::optional<std::string> read_small_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) {
    return std::nullopt;
  }
  return text.str();
}

std::optional<AvailableMemory> available_memory(const ReadFile& read_file) {
  std::optional<AvailableMemory> least;
  const std::string host = read_file("/proc/meminfo").value_or("");
  if (const auto available = field(host, "MemAvailable:")) {
    keep_least(
        least,
        {.bytes = *available * kKiB,
         .source = "MemAvailable of /proc/meminfo"});
  }
  constexpr std::uint64_t kNoOvercommit = 2;
  const auto limit = field(host, "CommitLimit:");
  const auto promised = field(host, "Committed_AS:");
  if (number_in(read_file, "/proc/sys/vm/overcommit_memory") == kNoOvercommit &&
      limit && promised) {
    keep_least(
        least,
        {.bytes = minus(*limit, *promised) * kKiB,
         .source = "CommitLimit of /proc/meminfo"});
  }
  // The lines are "number:controllers:group"; version 2 has number 0.
  std::istringstream groups(read_file("/proc/self/cgroup").value_or(""));
  std::string line;
  while (std::getline(groups, line)) {
    const auto path = line.find('/');
    if (path == std::string::npos) {
      continue;
    }
    if (line.starts_with("0::")) {
      look_at_groups(
          read_file, "/sys/fs/cgroup", line.substr(path),
          {.limit = "memory.max",
           .used = "memory.current",
           .reclaimable = {"inactive_file", "active_file"}},
          least);
    } else if (line.find(":memory:") != std::string::npos) {
      look_at_groups(
          read_file, "/sys/fs/cgroup/memory", line.substr(path),
          {.limit = "memory.limit_in_bytes",
           .used = "memory.usage_in_bytes",
           .reclaimable = {"total_inactive_file", "total_active_file"}},
          least);
    }
  }
  return least;
}

Status check_available_memory(
    std::uint64_t wanted_bytes, const std::optional<AvailableMemory>& left) {
  if (!left || wanted_bytes <= left->bytes) {
    return {};
  }
  return {
      ErrorCode::kUnavailable,
      str("[shm] a shared segment: expected ", wanted_bytes,
          " bytes of memory, found ", left->bytes, " available (", left->source,
          ")")};
}

}  // namespace sherd::shm
