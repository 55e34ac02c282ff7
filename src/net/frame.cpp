// SPDX-License-Identifier: Apache-2.0
#include "net/frame.h"

#include <algorithm>
#include <limits>
#include "base/crc32c.h"
#include "net/bytes.h"

namespace sherd::net {
namespace {

constexpr std::string_view kMagic = "SHRD";
constexpr std::size_t kHeaderCrcAt = 20;

void append(std::string& bytes, const Frame& frame, std::string_view payload) {
  SHERD_CHECK(
      payload.size() <= std::numeric_limits<std::uint32_t>::max(),
      "[net] expected a payload shorter than 4 GiB, found ", payload.size(),
      " bytes");
  ByteWriter header;
  header.raw(kMagic);
  header.u16(kVersionMajor);
  header.u16(frame.version_minor);
  header.u16(frame.type);
  header.u16(frame.flags);
  header.u32(static_cast<std::uint32_t>(payload.size()));
  header.u32(crc32c(payload));
  header.u32(crc32c(header.bytes()));
  SHERD_ASSERT(header.bytes().size() == kFrameHeaderBytes);
  bytes += header.bytes();
  bytes += payload;
}

// "16 03 01".
std::string hexadecimal(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    text += text.empty() ? "" : " ";
    text += kDigits[value >> 4U];
    text += kDigits[value & 15U];
  }
  return text;
}

// A TLS record's type (alert, handshake) and the major byte of its version.
bool is_tls(std::string_view bytes) {
  return (bytes[0] == 21 || bytes[0] == 22) && bytes[1] == 3;
}

Status wrong(const std::string& what) {
  return {ErrorCode::kPeerMismatch, "[net] " + what};
}

}  // namespace

void append_frame(
    std::string& bytes, std::uint16_t type, std::string_view payload) {
  append(bytes, {.type = type, .payload = {}}, payload);
}

std::string frame_bytes(const Frame& frame) {
  std::string bytes;
  append(bytes, frame, frame.payload);
  return bytes;
}

Status FrameReader::take(std::string_view bytes, std::vector<Frame>& frames) {
  while (failure_.ok() && !bytes.empty()) {
    if (header_bytes_ < kFrameHeaderBytes) {
      const std::size_t count =
          std::min(kFrameHeaderBytes - header_bytes_, bytes.size());
      bytes.copy(header_.data() + header_bytes_, count);
      header_bytes_ += count;
      bytes.remove_prefix(count);
      failure_ = read_header();
    } else {
      const std::size_t count =
          std::min(payload_bytes_ - frame_.payload.size(), bytes.size());
      keep(bytes.substr(0, count));
      bytes.remove_prefix(count);
    }
    if (failure_.ok()) {
      failure_ = read_payload(frames);
    }
  }
  return failure_;
}

// Checks whatever part of the header has arrived, so that an unknown client that sends a few bytes
// and waits gets an answer.
Status FrameReader::read_header() {
  const std::string_view came(header_.data(), header_bytes_);
  const std::string_view magic = came.substr(0, kMagic.size());
  if (!kMagic.starts_with(magic)) {
    const bool tls = came.size() >= 2 && is_tls(came);
    return wrong(
        str("expected frames of sherd, found bytes that begin with ",
            hexadecimal(magic),
            tls ? ": TLS; one side has a secret or certificate and the other "
                  "has none"
                : ""));
  }
  if (header_bytes_ < kFrameHeaderBytes) {
    return {};
  }
  ByteReader header(came);
  header.raw("magic", kMagic.size());
  const int major = header.u16("major version");
  if (major != kVersionMajor) {  // Other versions may have other headers.
    const int minor = header.u16("minor version");
    return wrong(
        str("expected version ", kVersionMajor, ".", kVersionMinor,
            " of the messages, found version ", major, ".", minor,
            ": both sides need the same major version of sherd"));
  }
  frame_ = {};
  frame_.version_minor = header.u16("minor version");
  frame_.type = header.u16("type");
  frame_.flags = header.u16("flags");
  payload_bytes_ = header.u32("payload length");
  payload_crc_ = header.u32("payload checksum");
  const std::uint32_t crc = header.u32("header checksum");
  SHERD_ASSERT(header.ok() && header.left() == 0);
  if (crc != crc32c(came.substr(0, kHeaderCrcAt))) {
    return wrong("checksum of a frame's header differs: its bytes are damaged");
  }
  if (payload_bytes_ > limit_) {
    return wrong(
        str("expected payloads of at most ", limit_, " bytes, found ",
            payload_bytes_, " in a frame of type ", frame_.type));
  }
  return {};
}

void FrameReader::keep(std::string_view bytes) {
  std::string& payload = frame_.payload;
  const std::size_t needed = payload.size() + bytes.size();
  if (needed > payload.capacity()) {
    payload.reserve(
        std::min(payload_bytes_, std::max(needed, 2 * payload.capacity())));
  }
  payload += bytes;
}

// Called for an empty payload too, with its header.
Status FrameReader::read_payload(std::vector<Frame>& frames) {
  if (header_bytes_ < kFrameHeaderBytes ||
      frame_.payload.size() < payload_bytes_) {
    return {};
  }
  if (crc32c(frame_.payload) != payload_crc_) {
    return wrong(
        str("checksum of the payload of a frame of type ", frame_.type,
            " differs: its ", payload_bytes_, " bytes are damaged"));
  }
  frames.push_back(std::exchange(frame_, {}));
  header_bytes_ = 0;
  limit_ = payload_bytes_max_;
  return {};
}

}  // namespace sherd::net
