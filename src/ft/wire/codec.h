// SPDX-License-Identifier: Apache-2.0
//
// Encodes the messages between replicas and the coordinator. Each message begins with the version
// of the wire format, which is not that of the log (record_codec.h). Then come a mask of the parts
// that it has and those parts, in the order of their bits; what the other side of the connection
// already knows is left out (report_stream.h, view_stream.h). A part that a later version adds
// takes the next bit and comes last, so that this version skips it. Each length has a limit, which
// is checked before memory is allocated; each value is checked for its type and range. Thread rule:
// pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include "base/clock.h"
#include "net/bytes.h"

namespace sherd::ft {

// Raised when a part changes its meaning or its fields. Bytes of another version are refused.
inline constexpr std::uint16_t kWireVersion = 6;

// Types of frames between replicas and the coordinator.
enum class FrameType : std::uint16_t {
  kReport = 1,
  kRunView = 2,
  // The coordinator will never understand this replica. The payload says why, as text, in all
  // versions.
  kRefusal = 3,
};

// A replica reports whenever something changes, and at least this often: after four heartbeats
// without a report the coordinator takes it for lost.
inline constexpr Duration kHeartbeatInterval = std::chrono::milliseconds(250);
// After this many heartbeats without a message from a rank, its agent counts as silent. Under load
// one or two may be late.
inline constexpr std::uint32_t kSilentAfterHeartbeats = 4;

struct CodecLimits {
  static constexpr std::size_t kMembers = 4096;  // Also the limit for peers.
  static constexpr std::size_t kRanges = 65536;  // For one member.
  static constexpr std::size_t kAddresses = 65536;
  // Whose progress a report has. Leaders choose 16 at most.
  static constexpr std::size_t kRanksReported = 256;
  static constexpr std::size_t kCommits = 1024;
  static constexpr std::size_t kTextBytes = 65536;
};

// Longer texts in received messages are truncated: a message may hold more, but failures are kept
// in memory and shown.
inline constexpr std::size_t kShownBytesMax = 1000;

// The version of a message, if it differs from this one.
inline std::optional<std::uint16_t> other_version(std::string_view message) {
  net::ByteReader reader(message);
  const std::uint16_t version = reader.u16("the version");
  return reader.ok() && version != kWireVersion ? std::optional(version)
                                                : std::nullopt;
}

}  // namespace sherd::ft
