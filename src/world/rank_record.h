// SPDX-License-Identifier: Apache-2.0
//
// RankRecord is what ranks tell each other in the rendezvous: enough to know which ranks share a
// host and to watch their processes. It is sent as text through the store. Thread rule: a value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "base/status.h"

namespace sherd::world {

struct HostIdentity {
  std::string hostname{};
  std::string boot_id{};  // Differs between machines; changes with a reboot.
  std::string pid_namespace{};  // Process ids are comparable only within one.
  std::string net_namespace{};  // Each has a loopback address of its own.
  // For tests: ranks for which it differs count as ranks of different hosts that can still watch
  // each other's processes.
  std::string fake{};
  std::string address{};  // From which it reaches MASTER_ADDR; may be empty.

  // This host, as described by /proc; unknown parts are empty.
  static HostIdentity of_this_process();
};

struct RankRecord {
  int rank = 0;
  int world_size = 1;
  HostIdentity host;
  int pid = 0;
  // The start time of the process in clock ticks since boot, so that a recycled process id is not
  // mistaken for the rank. 0 if unknown.
  std::uint64_t start_ticks = 0;
  int exit_status_fd = -1;  // In the rank's own descriptor table.

  // This process as `rank`; `host` is an argument so that tests can invent it.
  static RankRecord of_this_process(
      int rank, int world_size, int exit_status_fd, const HostIdentity& host);

  std::string to_text() const;
  // kInvalidArgument if `text` is no record.
  static Result<RankRecord> from_text(const std::string& text);
};

// Ranks of one host can share memory; those that also share process ids can watch each other, and
// those that share a network reach each other at the loopback address.
bool same_host(const HostIdentity& a, const HostIdentity& b);
bool same_pids(const HostIdentity& a, const HostIdentity& b);
bool same_network(const HostIdentity& a, const HostIdentity& b);

// The host towards which the host of rank `own` has the address at which other hosts reach it.
// This is `master_addr`, unless that leads to the loopback address on this host only, as a host's
// own name does on Debian. Then it is a host from which it leads elsewhere.
std::string host_that_reaches(
    const std::vector<RankRecord>& records,
    int own,
    const std::string& master_addr);

// Whether both are of one process.
bool same_process(const RankRecord& a, const RankRecord& b);

}  // namespace sherd::world
