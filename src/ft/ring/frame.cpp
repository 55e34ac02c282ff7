// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/frame.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include "base/crc32c.h"
#include "base/printable.h"
#include "ft/wire/fields.h"
#include "net/bytes.h"

namespace sherd::ft::ring {
namespace {

using wire::FieldReader;
using wire::FieldWriter;
using wire::Of;

constexpr std::uint32_t kMagic = 0x52524853;  // "SHRR"
constexpr std::uint16_t kVersion = 3;
constexpr std::size_t kReasonBytesMax = 400;

std::string frame(FrameKind kind, const Epoch& epoch, std::string payload) {
  SHERD_ASSERT(payload.size() <= kTextBytesMax);
  FrameHeader header;
  header.kind = kind;
  header.epoch = epoch;
  header.payload_bytes = static_cast<std::uint32_t>(payload.size());
  header.payload_checksum = crc32c(payload);
  const HeaderBytes bytes = bytes_of(header);
  return std::string(bytes.data(), bytes.size()) + payload;
}

// What is between the kind and the factor.
void header_fields(auto& io, Of<FrameHeader> auto& header) {
  fields(io, header.epoch);
  io.number("step", header.step);
  io.number("slice", header.slice);
  io.number("bucket", header.bucket);
  io.number("segment", header.segment);
  io.number("ring step", header.ring_step);
  io.number("first element", header.first_element);
  io.number("payload bytes", header.payload_bytes);
  io.number("payload checksum", header.payload_checksum);
  io.number("place", header.place);
  io.number("lease", header.lease);
}

// All but the proof.
void handshake_fields(auto& io, Of<Handshake> auto& handshake) {
  io.number("run", handshake.run);
  io.number("replica", handshake.from);
  io.number("incarnation", handshake.from_incarnation);
  io.number("replica called", handshake.to);
  io.number("incarnation called", handshake.to_incarnation);
  io.number("shard rank", handshake.shard_rank);
  io.number("members", handshake.members);
  io.number("window", handshake.window);
  io.number("chunk", handshake.chunk_elements);
  io.number("buckets", handshake.buckets);
  io.number("elements", handshake.elements);
  io.number("layout", handshake.layout);
  io.number("process of the memory", handshake.memory.process);
  io.number("descriptor of the memory", handshake.memory.descriptor);
  io.number("bytes of the memory", handshake.memory.bytes);
  io.number("key of the memory", handshake.memory_key);
  io.number("challenge", handshake.challenge);
}

}  // namespace

HeaderBytes bytes_of(const FrameHeader& header) {
  FieldWriter io;
  auto& out = io.out;
  out.u32(kMagic);
  out.u16(kVersion);
  out.u16(static_cast<std::uint16_t>(header.kind));
  header_fields(io, header);
  out.u32(std::bit_cast<std::uint32_t>(header.factor));
  out.u32(crc32c(out.bytes()));
  SHERD_ASSERT(out.bytes().size() == kHeaderBytes);
  HeaderBytes bytes = {};
  std::ranges::copy(out.bytes(), bytes.begin());
  return bytes;
}

Result<FrameHeader> parse_header(const HeaderBytes& bytes) {
  const std::string_view view(bytes.data(), bytes.size());
  FieldReader io{net::ByteReader(view)};
  auto& in = io.in;
  const auto magic = in.u32("magic");
  const auto version = in.u16("version");
  if (magic != kMagic) {
    return Status(
        ErrorCode::kPeerMismatch, "expected a frame, found other bytes");
  }
  // The checksum comes first: the version in a damaged header means nothing.
  constexpr std::size_t kSummed = kHeaderBytes - sizeof(std::uint32_t);
  net::ByteReader end(view.substr(kSummed));
  if (end.u32("checksum") != crc32c(view.substr(0, kSummed))) {
    return Status(ErrorCode::kAborted, "checksum of a header is wrong");
  }
  if (version != kVersion) {
    return Status(
        ErrorCode::kPeerMismatch,
        str("expected version ", kVersion, ", found version ", version));
  }
  FrameHeader header;
  const auto kind = in.u16("kind");
  header_fields(io, header);
  header.factor = std::bit_cast<float>(in.u32("factor"));
  if (kind < static_cast<std::uint16_t>(FrameKind::kHandshake) ||
      kind > static_cast<std::uint16_t>(FrameKind::kChallenge)) {
    return Status(
        ErrorCode::kPeerMismatch, str("expected a known frame, found ", kind));
  }
  if (!in.ok()) {
    return in.finish("header of a frame");
  }
  header.kind = static_cast<FrameKind>(kind);
  const bool is_text =
      header.kind != FrameKind::kData && header.kind != FrameKind::kSharedData;
  if (is_text && header.payload_bytes > kTextBytesMax) {
    return Status(
        ErrorCode::kPeerMismatch,
        str("expected at most ", kTextBytesMax, " bytes, found ",
            header.payload_bytes));
  }
  if (!std::isfinite(header.factor) || header.factor < 0) {
    return Status(
        ErrorCode::kPeerMismatch,
        str("expected a factor of 0 or more, found ", header.factor));
  }
  return header;
}

std::size_t bytes_after(const FrameHeader& header) {
  return header.kind == FrameKind::kSharedData ? 0 : header.payload_bytes;
}

net::MessageCode proof_of(
    const Epoch& epoch,
    const Handshake& handshake,
    const RingKey& key,
    std::uint64_t challenge) {
  FieldWriter said;
  said.number("challenge", challenge);
  fields(said, epoch);
  handshake_fields(said, handshake);
  return net::message_code(wire::encoded(key), said.out.bytes());
}

std::string frame_of(const Epoch& epoch, const Handshake& handshake) {
  FieldWriter io;
  handshake_fields(io, handshake);
  io.out.raw({handshake.proof.data(), handshake.proof.size()});
  return frame(FrameKind::kHandshake, epoch, io.out.take());
}

std::string challenge_frame(std::uint64_t challenge) {
  net::ByteWriter out;
  out.u64(challenge);
  return frame(FrameKind::kChallenge, {}, out.take());
}

std::string refusal_frame(const Epoch& epoch, std::string_view reason) {
  return frame(FrameKind::kRefusal, epoch, printable(reason, kReasonBytesMax));
}

std::string frame_of(const Epoch& epoch, const RingEnding& ending) {
  net::ByteWriter out;
  out.u8(static_cast<std::uint8_t>(ending.fault));
  out.u32(ending.reporter);
  out.u32(ending.accused);
  out.i64(ending.finished_step);
  out.text(printable(ending.reason, kReasonBytesMax));
  return frame(FrameKind::kEnding, epoch, out.take());
}

Result<std::uint64_t> parse_challenge(std::string_view payload) {
  net::ByteReader in(payload);
  const std::uint64_t challenge = in.u64("a challenge");
  return in.finish("challenge of a ring", challenge);
}

Result<Handshake> parse_handshake(std::string_view payload) {
  FieldReader io{net::ByteReader(payload)};
  Handshake handshake;
  handshake_fields(io, handshake);
  const auto proof = io.in.raw("proof", handshake.proof.size());
  std::ranges::copy(proof, handshake.proof.begin());
  return io.in.finish("hello of a ring", handshake);
}

Result<RingEnding> parse_ending(std::string_view payload) {
  net::ByteReader in(payload);
  RingEnding ending;
  ending.fault = static_cast<RingFault>(
      in.choice("fault", static_cast<std::uint8_t>(RingFault::kResources)));
  ending.reporter = in.u32("reporter");
  ending.accused = in.u32("accused");
  ending.finished_step = in.i64("finished step");
  ending.reason =
      printable(in.text("reason", kReasonBytesMax), kReasonBytesMax);
  return in.finish("ending of a ring", std::move(ending));
}

std::string parse_refusal(std::string_view payload) {
  return printable(payload, kReasonBytesMax);
}

}  // namespace sherd::ft::ring
