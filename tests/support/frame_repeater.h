// SPDX-License-Identifier: Apache-2.0
//
// FrameRepeater finds the frames (net/frame.h) in a stream and writes some of them a second time,
// later, which a peer must treat as a repetition. The first frame is the greeting, which comes only
// once. Bytes that are no frames pass unchanged. Thread rule: one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include "net/frame.h"
#include "support/fault_proxy.h"

namespace sherd::test {

class FrameRepeater {
 public:
  // What to send for these bytes, the next ones of the stream.
  std::string feed(std::string_view bytes, const Faults& faults) {
    if (foreign_) {
      return std::string(bytes);
    }
    rest_ += bytes;
    std::string out;
    while (const std::size_t size = next_frame_bytes()) {
      const std::string frame = rest_.substr(0, size);
      rest_.erase(0, size);
      out += frame;
      if (frames_ > 0 && faults.frames_again_after != Faults::kNever &&
          frames_ % faults.frames_again_every == 0) {
        past_.push_back({frame, frames_ + faults.frames_again_after});
      }
      if (!past_.empty() && past_.front().second <= frames_) {
        out += past_.front().first;
        past_.pop_front();
      }
      ++frames_;
    }
    if (foreign_) {
      out += rest_;
      rest_.clear();
    }
    return out;
  }

 private:
  // The size of the next frame; 0 if it is incomplete.
  std::size_t next_frame_bytes() {
    constexpr std::string_view kMagic = "SHRD";
    const auto known = std::min(rest_.size(), kMagic.size());
    foreign_ = rest_.compare(0, known, kMagic, 0, known) != 0;
    if (foreign_ || rest_.size() < net::kFrameHeaderBytes) {
      return 0;
    }
    constexpr std::size_t kLengthAt = 12;
    std::uint32_t payload_bytes = 0;
    std::memcpy(&payload_bytes, rest_.data() + kLengthAt, sizeof payload_bytes);
    const std::size_t all = net::kFrameHeaderBytes + payload_bytes;
    return rest_.size() < all ? 0 : all;
  }

  std::string rest_;  // The beginning of an incomplete frame.
  // Frames to repeat, and when.
  std::deque<std::pair<std::string, std::int64_t>> past_;
  std::int64_t frames_ = 0;
  bool foreign_ = false;
};

}  // namespace sherd::test
