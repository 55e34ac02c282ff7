// SPDX-License-Identifier: Apache-2.0
//
// The reports of one connection as bytes. The first one is whole; each later one has only what has
// changed since the one before: a heartbeat says that the ranks move, and little else. Addresses,
// which are many, go once. Thread rule: one thread.
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

// They are: who, serial, held, joined, vote, suspicion, digest, bad gradients, whether it ends,
// addresses, progress, ranks. What it remembers came later: who is not asked says nothing of it.
inline constexpr std::size_t kFirstReportParts = 12;
inline constexpr std::size_t kReportParts = 14;

class ReportWriter {
 public:
  // The next report of the connection. Throws Error for a list or a host name above its limit.
  std::string bytes_of(const Report& report);

 private:
  std::string ranks_bytes(const std::vector<TrainingProgress>& ranks);

  std::uint32_t messages_ = 0;
  std::array<std::string, kReportParts> said_;  // The parts, as said last.
  RankAddresses addresses_;
  std::vector<std::string> ranks_;
  bool remembered_ = false;  // Has said what it remembers.
};

class ReportReader {
 public:
  // The next message of the connection; one that comes again changes nothing. After a failure the
  // connection is of no use any more.
  Status read(std::string_view bytes);
  // The last one, with what was said before.
  const Report& report() const { return report_; }

 private:
  std::uint32_t messages_ = 0;
  Report report_;
};

}  // namespace sherd::ft
