// SPDX-License-Identifier: Apache-2.0
//
// Frames delimit messages in a byte stream: 24 bytes of header, little-endian, then the payload.
//
//   at 0   magic "SHRD"
//   at 4   version: major, minor (u16 each)
//   at 8   type (u16), flags (u16; none has a meaning yet)
//   at 12  payload: length (u32), CRC32C (u32)
//   at 20  CRC32C (u32) of the 20 bytes before
//
// The header has its own checksum, so that a damaged length is detected before anybody waits for
// that many bytes. Thread rule: values; a reader belongs to one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "base/status.h"

namespace sherd::net {

constexpr std::size_t kFrameHeaderBytes = 24;
// The version that is written. Frames of another major version are refused; those of another minor
// version are read, and its number is reported.
constexpr std::uint16_t kVersionMajor = 1;
constexpr std::uint16_t kVersionMinor = 0;

struct Frame {
  std::uint16_t type = 0;
  std::uint16_t flags = 0;
  std::uint16_t version_minor = kVersionMinor;
  std::string payload{};
  bool operator==(const Frame&) const = default;
};

// Appends the frame's bytes. REQUIRES: the payload is shorter than 4 GiB.
void append_frame(
    std::string& bytes, std::uint16_t type, std::string_view payload);
std::string frame_bytes(const Frame& frame);

class FrameReader {
 public:
  // A longer payload is refused as soon as its header has arrived.
  explicit FrameReader(std::size_t payload_bytes_max)
      : payload_bytes_max_(payload_bytes_max), limit_(payload_bytes_max) {}

  // Another limit for the first frame, whose sender is not known yet. REQUIRES: nothing was taken.
  void limit_first(std::size_t payload_bytes_max) {
    limit_ = payload_bytes_max;
  }
  // Takes the next bytes of the stream and appends the frames that they complete. A failure (wrong
  // magic, version, checksum or length) is final: nothing is read after it, and the frames before
  // it are in `frames`. Memory grows with the received bytes, not with what a header announces.
  Status take(std::string_view bytes, std::vector<Frame>& frames);

  // Whether a frame has begun but is not complete.
  bool inside_frame() const { return header_bytes_ > 0; }
  // The memory that the incomplete frame takes.
  std::size_t memory_bytes() const { return frame_.payload.capacity(); }

 private:
  Status read_header();
  Status read_payload(std::vector<Frame>& frames);
  void keep(std::string_view bytes);

  const std::size_t payload_bytes_max_;
  std::size_t limit_;  // For the current frame.
  std::array<char, kFrameHeaderBytes> header_{};
  std::size_t header_bytes_ = 0;
  // Filled from the header once that is complete.
  Frame frame_;
  std::size_t payload_bytes_ = 0;
  std::uint32_t payload_crc_ = 0;
  Status failure_;
};

}  // namespace sherd::net
