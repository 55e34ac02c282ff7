// SPDX-License-Identifier: Apache-2.0
//
// PeerLink is a member's connection with one other member of an epoch: a sender, from which data
// come, or a receiver, to which data go and to which this member connects. Control frames go both
// ways. TransferRate measures how fast data arrive. Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include "base/backoff.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "ft/ring/framed_socket.h"
#include "ft/ring/shared_floats.h"

namespace sherd::ft::ring {

// How fast data frames arrive on one connection while they arrive: a link that waits for gradients,
// or for an earlier member, is not slow.
class TransferRate {
 public:
  // The time of a shorter frame depends more on threads than on the link.
  static constexpr std::size_t kFrameBytesMin = std::size_t{64} << 10U;
  // No rate is known before this many bytes have arrived.
  static constexpr std::uint64_t kBytesMin = std::uint64_t{4} << 20U;
  // When this many bytes have been counted, the earlier ones count half.
  static constexpr std::uint64_t kBytesMax = std::uint64_t{32} << 20U;
  // A ring's thread moves hardly more than this, so faster links are not distinguished.
  static constexpr std::uint64_t kFastest = 1'000'000'000;

  // The header of a data frame has arrived.
  void begins(Instant now) { began_ = now; }
  // The last byte of the frame has arrived.
  void ends(std::size_t bytes, Instant now) {
    if (bytes < kFrameBytesMin) {
      return;
    }
    bytes_ += bytes;
    time_ += now - began_;
    if (bytes_ > kBytesMax) {
      bytes_ /= 2;
      time_ /= 2;
    }
  }

  // Nullopt if the rate is not known yet.
  std::optional<std::uint64_t> bytes_per_s() const {
    if (bytes_ < kBytesMin) {
      return std::nullopt;
    }
    const double speed =
        static_cast<double>(bytes_) / std::max(seconds(time_), 1e-6);
    return speed < static_cast<double>(kFastest)
        ? static_cast<std::uint64_t>(speed)
        : kFastest;
  }

 private:
  Instant began_{};
  std::uint64_t bytes_ = 0;
  Duration time_{0};
};

struct PeerLink {
  bool is_sender = false;  // Otherwise a receiver.
  int index = 0;     // Its index among the schedule's receivers or senders.
  int position = 0;  // The peer's position in the epoch.
  // Reset when the connection has ended in order.
  std::optional<FramedSocket> socket;
  bool connected = false;  // Both sides have proved who they are.
  // Data frames that were received or sent, modulo 2^32.
  std::uint32_t frames = 0;

  // Only for a sender:
  TransferRate rate;
  // The memory it shares, which is read in place.
  std::optional<PeerFloats> memory;

  // Only for a receiver:
  Descriptor dialling;
  Instant dial_at{};
  std::string dial_problem;
  Backoff dial_backoff{
      {.first = std::chrono::milliseconds(10),
       .longest = std::chrono::milliseconds(200)}};
  // Used for the receiver's proof; 0 until the receiver has sent it.
  std::uint64_t challenge = 0;
};

}  // namespace sherd::ft::ring
