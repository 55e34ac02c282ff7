// SPDX-License-Identifier: Apache-2.0
//
// PeerLink is a member's connection with one other member of an epoch: data come from a sender, or go
// to a receiver, which this member dials. Control frames go both ways. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include "base/backoff.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "ft/ring/framed_socket.h"
#include "ft/ring/shared_floats.h"
#include "ft/ring/transfer_rate.h"

namespace sherd::ft::ring {

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
