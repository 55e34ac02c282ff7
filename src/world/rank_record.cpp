// SPDX-License-Identifier: Apache-2.0
#include "world/rank_record.h"

#include <unistd.h>
#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <fstream>
#include <sstream>
#include "base/host.h"
#include "base/process.h"
#include "net/security.h"

namespace sherd::world {
namespace {

constexpr const char* kMagic = "sherd-rank-4";

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  std::array<char, PATH_MAX> target{};
  const auto n = ::readlink(path, target.data(), target.size() - 1);
  return n > 0 ? std::string(target.data(), static_cast<std::size_t>(n)) : "";
}

bool same_machine(const HostIdentity& a, const HostIdentity& b) {
  return a.hostname == b.hostname && a.boot_id == b.boot_id;
}

}  // namespace

HostIdentity HostIdentity::of_this_process() {
  return {
      .hostname = host_name(),
      .boot_id = first_line("/proc/sys/kernel/random/boot_id"),
      .pid_namespace = link_target("/proc/self/ns/pid"),
      .net_namespace = link_target("/proc/self/ns/net")};
}

RankRecord RankRecord::of_this_process(
    int rank, int world_size, int exit_status_fd, const HostIdentity& host) {
  const int pid = static_cast<int>(::getpid());
  return {
      .rank = rank,
      .world_size = world_size,
      .host = host,
      .pid = pid,
      .start_ticks = process_start_ticks(pid),
      .exit_status_fd = exit_status_fd};
}

std::string RankRecord::to_text() const {
  return str(
      kMagic, "\n", rank, " ", world_size, " ", pid, " ", start_ticks, " ",
      exit_status_fd, "\n", host.hostname, "\n", host.boot_id, "\n",
      host.pid_namespace, "\n", host.net_namespace, "\n", host.fake, "\n",
      host.address, "\n");
}

Result<RankRecord> RankRecord::from_text(const std::string& text) {
  std::istringstream in(text);
  std::string magic;
  std::string numbers;
  RankRecord r;
  const bool whole = std::getline(in, magic) && std::getline(in, numbers) &&
      std::getline(in, r.host.hostname) && std::getline(in, r.host.boot_id) &&
      std::getline(in, r.host.pid_namespace) &&
      std::getline(in, r.host.net_namespace) && std::getline(in, r.host.fake) &&
      std::getline(in, r.host.address);
  std::istringstream fields(numbers);
  const bool parsed = static_cast<bool>(
      fields >> r.rank >> r.world_size >> r.pid >> r.start_ticks >>
      r.exit_status_fd);
  if (!whole || !parsed || magic != kMagic || r.rank < 0 ||
      r.rank >= r.world_size || r.pid <= 0) {
    return Status(
        ErrorCode::kInvalidArgument,
        str("[world] expected a rank's record in the store, found '", text,
            "'"));
  }
  return r;
}

bool same_host(const HostIdentity& a, const HostIdentity& b) {
  return same_machine(a, b) && a.fake == b.fake;
}

bool same_pids(const HostIdentity& a, const HostIdentity& b) {
  return same_machine(a, b) && a.pid_namespace == b.pid_namespace;
}

bool same_network(const HostIdentity& a, const HostIdentity& b) {
  return same_machine(a, b) && a.net_namespace == b.net_namespace;
}

std::string host_that_reaches(
    const std::vector<RankRecord>& records,
    int own,
    const std::string& master_addr) {
  const HostIdentity& here = records[static_cast<std::size_t>(own)].host;
  if (!net::is_loopback(here.address)) {
    return master_addr;
  }
  const auto other =
      std::ranges::find_if(records, [&](const RankRecord& record) {
        const std::string& address = record.host.address;
        return !same_network(record.host, here) && !address.empty() &&
            !net::is_loopback(address);
      });
  return other == records.end() ? master_addr : other->host.address;
}

bool same_process(const RankRecord& a, const RankRecord& b) {
  return a.pid == b.pid && a.start_ticks == b.start_ticks &&
      same_pids(a.host, b.host);
}

}  // namespace sherd::world
