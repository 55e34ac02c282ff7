// SPDX-License-Identifier: Apache-2.0
//
// Encodes the reports of one connection. The first one is complete; each later one has only what
// has changed since the one before: a heartbeat says little more than that the ranks make progress.
// Addresses, which are many, are sent once. Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "base/status.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

// The parts of the first version: who, serial, held, joined, vote, suspicion, digest, bad
// gradients, whether it ends, addresses, progress, ranks. What the replica remembers was added
// later and is sent only if the coordinator asks.
inline constexpr std::size_t kFirstReportParts = 12;
inline constexpr std::size_t kReportParts = 14;

class ReportWriter {
 public:
  // The next report of the connection. Throws Error for a list or a host name above its limit.
  std::string bytes_of(const Report& report);

 private:
  std::string ranks_bytes(const std::vector<TrainingProgress>& ranks);

  std::uint32_t messages_ = 0;
  std::array<std::string, kReportParts> said_;  // Each part as last sent.
  RankAddresses addresses_;
  std::vector<std::string> ranks_;
};

class ReportReader {
 public:
  // Reads the next message of the connection; one that is repeated changes nothing. After a failure
  // the connection cannot be used any more.
  Status read(std::string_view bytes);
  // The last report, including what earlier messages said.
  const Report& report() const { return report_; }

 private:
  std::uint32_t messages_ = 0;
  Report report_;
};

}  // namespace sherd::ft
