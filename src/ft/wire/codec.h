// SPDX-License-Identifier: Apache-2.0
//
// Encodes and decodes reports, views and the log's records. The bytes begin with a version. Each
// length has a limit, which is checked before memory is taken for it; each value is checked for its
// type and range, and no byte may be left over. Thread rule: pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include "base/clock.h"
#include "base/status.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

// Bytes of another version are refused, naming both.
inline constexpr std::uint16_t kCodecVersion = 3;

// Types of frames between replicas and the coordinator.
enum class FrameType : std::uint16_t { kReport = 1, kRunView = 2 };

// A replica reports whenever something changes, and at least this often: after four heartbeats
// without a report the coordinator takes it for lost.
inline constexpr Duration kHeartbeatInterval = std::chrono::milliseconds(250);

struct CodecLimits {
  static constexpr std::size_t kMembers = 4096;  // Also of peers.
  static constexpr std::size_t kRanges = 65536;  // For one member.
  static constexpr std::size_t kAddresses = 65536;
  static constexpr std::size_t kCommits = 1024;
  static constexpr std::size_t kTextBytes = 65536;
};

// Reasons that are too long are cut. Throws Error for a list or a host name above its limit.
std::string bytes_of(const Report& report);
std::string bytes_of(const RunView& view);
std::string bytes_of(const Record& record);

// A failure states what was expected and what was found.
Result<Report> report_of(std::string_view bytes);
Result<RunView> run_view_of(std::string_view bytes);
Result<Record> record_of(std::string_view bytes);

}  // namespace sherd::ft
