// SPDX-License-Identifier: Apache-2.0
//
// The wire format between two peers of an all-reduce: frames of a header and a payload,
// little-endian, each with a checksum. Every header names the epoch, so that late bytes of a former
// epoch are never mistaken for current ones. docs/design/ring_reduce.md describes the conversation.
// Thread rule: values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include "base/status.h"
#include "ft/protocol/identity.h"
#include "ft/ring/ring_types.h"
#include "ft/ring/shared_floats.h"
#include "net/authentication.h"

namespace sherd::ft::ring {

enum class FrameKind : std::uint16_t {
  // The connecting side's first frame, and the acceptor's answer.
  // The alternative answer: a text.
  kHandshake = 1,
  kRefusal,
  kData,
  kSharedData,  // Like kData, but the payload is read in the sender's memory.
  kEnding,      // The last frame.
  kChallenge,   // The acceptor's first frame.
};

struct FrameHeader {
  FrameKind kind = FrameKind::kData;
  Epoch epoch;
  // Set for kData and kSharedData, otherwise zeros.
  std::int64_t step = 0;  // The step that the attempt would make.
  std::int64_t slice = 0;
  std::uint32_t bucket = 0;
  std::uint16_t segment = 0;
  // The frame's index in the slice at the receiver.
  std::uint16_t ring_step = 0;
  std::int64_t first_element = 0;

  std::uint32_t payload_bytes = 0;
  // 0 for kSharedData, which sends no payload.
  std::uint32_t payload_checksum = 0;

  // Set for kSharedData, otherwise zeros: where the data lie, under which lease, and the factor
  // that the reader still has to apply (0 if none).
  std::uint64_t place = 0;
  std::uint64_t lease = 0;
  float factor = 0;
  bool operator==(const FrameHeader&) const = default;
};

// The length of what follows the header.
std::size_t bytes_after(const FrameHeader& header);

constexpr std::size_t kHeaderBytes = 88;
using HeaderBytes = std::array<char, kHeaderBytes>;

HeaderBytes bytes_of(const FrameHeader& header);
// The status says what is wrong with the header. kPeerMismatch: it is from another program or
// version; kAborted: it was damaged in transit.
Result<FrameHeader> parse_header(const HeaderBytes& bytes);

// The limit for payloads other than data.
constexpr std::size_t kTextBytesMax = 512;

// The two ends of a connection, and the configuration that both must share.
struct Handshake {
  std::uint64_t run = 0;
  ReplicaId from = 0;
  Incarnation from_incarnation = 0;
  ReplicaId to = 0;
  Incarnation to_incarnation = 0;
  std::uint32_t shard_rank = 0;
  std::uint32_t members = 0;
  std::uint32_t window = 0;
  std::uint64_t chunk_elements = 0;
  std::uint64_t buckets = 0;
  std::uint64_t elements = 0;  // Elements in all buckets.
  std::uint64_t layout = 0;    // The hash of the buckets' sizes, in order.

  // These may differ: the connecting side's memory, and in the answer the key that was found there;
  // 0 if there is none.
  IpcHandle memory{};
  std::uint64_t memory_key = 0;
  // Drawn by the connecting side for this connection.
  std::uint64_t challenge = 0;
  // Proves that the sender knows the acceptor's key.
  net::MessageCode proof{};
  bool operator==(const Handshake&) const = default;
};

// Covers the epoch and the whole handshake except its proof. `key` is the acceptor's, `challenge`
// that of the other side.
net::MessageCode proof_of(
    const Epoch& epoch,
    const Handshake& handshake,
    const RingKey& key,
    std::uint64_t challenge);

// These return whole frames.
std::string challenge_frame(std::uint64_t challenge);
std::string frame_of(const Epoch& epoch, const Handshake& handshake);
std::string refusal_frame(const Epoch& epoch, std::string_view reason);
std::string frame_of(const Epoch& epoch, const RingEnding& ending);

// These take payloads.
Result<std::uint64_t> parse_challenge(std::string_view payload);
Result<Handshake> parse_handshake(std::string_view payload);
Result<RingEnding> parse_ending(std::string_view payload);
std::string parse_refusal(std::string_view payload);

}  // namespace sherd::ft::ring
