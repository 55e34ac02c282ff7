// SPDX-License-Identifier: Apache-2.0
//
// PeerLink is a member's connection with one other member of an epoch: data come from a sender, or go
// to a receiver, which this member dials. Control frames go both ways. TransferRate says how fast they
// come. Thread rule: one thread.
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

// How fast data frames come on one connection, while they come: a link that waits for gradients, or for
// a member before it, is not slow.
class TransferRate {
 public:
  // How long a shorter frame takes says more about threads than about the link.
  static constexpr std::size_t kFrameBytesMin = std::size_t{64} << 10U;
  // So much must have come before anything is said.
  static constexpr std::uint64_t kBytesMin = std::uint64_t{4} << 20U;
  // What came before as much counts half.
  static constexpr std::uint64_t kBytesMax = std::uint64_t{32} << 20U;
  // The thread of a ring moves hardly more; what is faster is not told apart.
  static constexpr std::uint64_t kFastest = 1'000'000'000;

  // The header of a data frame is here.
  void begins(Instant now) { began_ = now; }
  // And its last byte.
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

  // None: it is not known yet.
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
  enum class Peer { kReceiver, kSender };

  Peer peer = Peer::kReceiver;
  int index = 0;     // Among the receivers or the senders of the schedule.
  int position = 0;  // The peer's in the epoch.
  // Reset when the connection has ended in order.
  std::optional<FramedSocket> socket;
  bool connected = false;    // Both sides have proved who they are.
  std::uint32_t frames = 0;  // Data frames that came or went, modulo 2^32.

  // A sender's.
  TransferRate rate;
  // What it shares is read in place.
  std::optional<PeerFloats> memory;

  // A receiver's.
  Descriptor dialling;
  Instant dial_at{};
  std::string dial_problem;
  Backoff dial_backoff{
      {.first = std::chrono::milliseconds(10),
       .longest = std::chrono::milliseconds(200)}};
  // For the receiver's proof; 0: it has not sent its own yet.
  std::uint64_t challenge = 0;
};

}  // namespace sherd::ft::ring
