// SPDX-License-Identifier: Apache-2.0
//
// Reports, orders and the log's records as bytes and back. The bytes begin with a
// version; every length has a limit, which is checked before memory is taken for
// it; what is read is of its type and range, and nothing is left over. Thread
// rule: pure functions.
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

// Of the bytes below. Another one is refused, naming both.
inline constexpr std::uint16_t kCodecVersion = 2;

// Types of frames between replicas and the coordinator.
enum class FrameType : std::uint16_t { kReport = 1, kRunView = 2 };

// A replica reports when something is new, and this often: the coordinator takes
// one that is silent for four beats for lost.
inline constexpr Duration kHeartbeatInterval = std::chrono::milliseconds(250);

struct CodecLimits {
  static constexpr std::size_t kMembers = 4096;  // And peers, participants.
  static constexpr std::size_t kRanges = 65536;  // Of one member.
  static constexpr std::size_t kAddresses = 65536;
  static constexpr std::size_t kCommits = 1024;
  static constexpr std::size_t kTextBytes = 65536;
};

// Reasons that are too long are cut. Throws Error for a list or a host's name
// above its limit.
std::string bytes_of(const Report& report);
std::string bytes_of(const RunView& view);
std::string bytes_of(const Record& record);

// A failure says what was expected and found.
Result<Report> report_of(std::string_view bytes);
Result<RunView> run_view_of(std::string_view bytes);
Result<Record> record_of(std::string_view bytes);

}  // namespace sherd::ft
