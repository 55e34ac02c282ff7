// SPDX-License-Identifier: Apache-2.0
//
// What replicas and the coordinator say, as bytes. Each message begins with the version of the wire,
// which is not that of the log (record_codec.h). Then come a mask of the parts that it has and those
// parts, in the order of their bits: what the other side of the connection has been told already is
// left out (report_stream.h, view_stream.h). A part that a later sherd adds takes the next bit and
// comes last, so that this one skips it. Each length has a limit, which is checked before memory is
// taken for it; each value is checked for its type and range. Thread rule: pure functions.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include "base/clock.h"
#include "net/bytes.h"

namespace sherd::ft {

// It grows when a part changes its meaning or its fields. Bytes of another version are refused.
inline constexpr std::uint16_t kWireVersion = 5;

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
// So many without a word of a rank, and its agent is silent: under load one or two come late.
inline constexpr std::uint32_t kSilentAfterHeartbeats = 4;

struct CodecLimits {
  static constexpr std::size_t kMembers = 4096;  // Also of peers.
  static constexpr std::size_t kRanges = 65536;  // For one member.
  static constexpr std::size_t kAddresses = 65536;
  static constexpr std::size_t kCommits = 1024;
  static constexpr std::size_t kTextBytes = 65536;
};

// Longer texts of a received message are cut: it may hold more, but failures are kept in memory and
// shown.
inline constexpr std::size_t kShownBytesMax = 1000;

// The version of a message, if it is not this one's.
inline std::optional<std::uint16_t> other_version(std::string_view message) {
  net::ByteReader reader(message);
  const std::uint16_t version = reader.u16("the version");
  return reader.ok() && version != kWireVersion ? std::optional(version)
                                                : std::nullopt;
}

}  // namespace sherd::ft
