// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/frame.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include "base/crc32c.h"
#include "base/printable.h"
#include "net/bytes.h"

namespace sherd::ft::ring {
namespace {

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

}  // namespace

HeaderBytes bytes_of(const FrameHeader& header) {
  net::ByteWriter out;
  out.u32(kMagic);
  out.u16(kVersion);
  out.u16(static_cast<std::uint16_t>(header.kind));
  out.u64(header.epoch.term);
  out.u64(header.epoch.number);
  out.i64(header.step);
  out.i64(header.slice);
  out.u32(header.bucket);
  out.u16(header.segment);
  out.u16(header.ring_step);
  out.i64(header.first_element);
  out.u32(header.payload_bytes);
  out.u32(header.payload_checksum);
  out.u64(header.place);
  out.u64(header.lease);
  out.u32(std::bit_cast<std::uint32_t>(header.factor));
  out.u32(crc32c(out.bytes()));
  SHERD_ASSERT(out.bytes().size() == kHeaderBytes);
  HeaderBytes bytes = {};
  std::ranges::copy(out.bytes(), bytes.begin());
  return bytes;
}

Result<FrameHeader> parse_header(const HeaderBytes& bytes) {
  const std::string_view view(bytes.data(), bytes.size());
  net::ByteReader in(view);
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
  header.epoch.term = in.u64("term");
  header.epoch.number = in.u64("epoch");
  header.step = in.i64("step");
  header.slice = in.i64("slice");
  header.bucket = in.u32("bucket");
  header.segment = in.u16("segment");
  header.ring_step = in.u16("ring step");
  header.first_element = in.i64("first element");
  header.payload_bytes = in.u32("payload bytes");
  header.payload_checksum = in.u32("payload checksum");
  header.place = in.u64("place");
  header.lease = in.u64("lease");
  header.factor = std::bit_cast<float>(in.u32("factor"));
  if (kind < static_cast<std::uint16_t>(FrameKind::kHandshake) ||
      kind > static_cast<std::uint16_t>(FrameKind::kChallenge)) {
    return Status(
        ErrorCode::kPeerMismatch, str("expected a known frame, found ", kind));
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

namespace {

// Writes everything except the proof.
void write_fields(net::ByteWriter& out, const Handshake& handshake) {
  out.u64(handshake.run);
  out.u32(handshake.from);
  out.u64(handshake.from_incarnation);
  out.u32(handshake.to);
  out.u64(handshake.to_incarnation);
  out.u32(handshake.shard_rank);
  out.u32(handshake.members);
  out.u32(handshake.window);
  out.u64(handshake.chunk_elements);
  out.u64(handshake.buckets);
  out.u64(handshake.elements);
  out.u64(handshake.layout);
  out.u32(handshake.memory.process);
  out.u32(handshake.memory.descriptor);
  out.u64(handshake.memory.bytes);
  out.u64(handshake.memory_key);
  out.u64(handshake.challenge);
}

}  // namespace

net::MessageCode proof_of(
    const Epoch& epoch,
    const Handshake& handshake,
    const RingKey& key,
    std::uint64_t challenge) {
  net::ByteWriter secret;
  secret.u64(key.high);
  secret.u64(key.low);
  net::ByteWriter said;
  said.u64(challenge);
  said.u64(epoch.term);
  said.u64(epoch.number);
  write_fields(said, handshake);
  return net::message_code(secret.bytes(), said.bytes());
}

std::string frame_of(const Epoch& epoch, const Handshake& handshake) {
  net::ByteWriter out;
  write_fields(out, handshake);
  out.raw({handshake.proof.data(), handshake.proof.size()});
  return frame(FrameKind::kHandshake, epoch, out.take());
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
  net::ByteReader in(payload);
  Handshake handshake;
  handshake.run = in.u64("run");
  handshake.from = in.u32("replica");
  handshake.from_incarnation = in.u64("incarnation");
  handshake.to = in.u32("replica called");
  handshake.to_incarnation = in.u64("incarnation called");
  handshake.shard_rank = in.u32("shard rank");
  handshake.members = in.u32("members");
  handshake.window = in.u32("window");
  handshake.chunk_elements = in.u64("chunk");
  handshake.buckets = in.u64("buckets");
  handshake.elements = in.u64("elements");
  handshake.layout = in.u64("layout");
  handshake.memory.process = in.u32("process of the memory");
  handshake.memory.descriptor = in.u32("descriptor of the memory");
  handshake.memory.bytes = in.u64("bytes of the memory");
  handshake.memory_key = in.u64("key of the memory");
  handshake.challenge = in.u64("challenge");
  const auto proof = in.raw("proof", handshake.proof.size());
  std::ranges::copy(proof, handshake.proof.begin());
  return in.finish("hello of a ring", handshake);
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
