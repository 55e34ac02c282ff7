// SPDX-License-Identifier: Apache-2.0
//
// Reads any bytes as a stream, in two ways: unchanged, and as a recipe for frames of which some
// bytes are then damaged, or none, in which case all must be read back. In pieces, the reader must
// report the same as for the whole, and hold no more memory than it has received bytes.
#include "net/frame.h"

#include <algorithm>
#include "base/check.h"
#include "support/round_trip.h"

namespace sherd::net {
namespace {

using test::FuzzBytes;
constexpr std::size_t kPayloadBytesMax = 4096;

struct Outcome {
  std::vector<Frame> frames;
  std::string message;
  bool operator==(const Outcome&) const = default;
};

Outcome read(std::string_view bytes, std::size_t piece) {
  FrameReader reader(kPayloadBytesMax);
  Outcome outcome;
  std::size_t came = 0;
  while (came < bytes.size()) {
    const auto next = bytes.substr(came, piece);
    came += next.size();
    outcome.message = reader.take(next, outcome.frames).message();
    SHERD_ASSERT(reader.memory_bytes() <= std::max(came * 2, std::size_t{64}));
  }
  return outcome;
}

Outcome check(std::string_view bytes) {
  const Outcome whole = read(bytes, std::max(bytes.size(), std::size_t{1}));
  for (const std::size_t piece : {1U, 7U, 100U}) {
    const Outcome pieces = read(bytes, piece);
    SHERD_ASSERT(pieces.frames == whole.frames);
    SHERD_ASSERT((pieces.message == "ok") == (whole.message == "ok"));
  }
  return whole;
}

void check_frames(FuzzBytes bytes) {
  std::vector<Frame> frames(1 + bytes.next() % 4);
  std::string stream;
  for (Frame& frame : frames) {
    frame.type = bytes.next();
    frame.flags = bytes.next();
    const std::size_t copies = bytes.next() % 20;
    frame.payload = std::string(copies * (bytes.next() % 20), 'x');
    stream += frame_bytes(frame);
  }
  const auto come_back = [&](const std::string& damaged) {
    return check(damaged) == Outcome{frames, "ok"};
  };
  test::check_damaged(stream, come_back, bytes);
}

}  // namespace
}  // namespace sherd::net

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  const std::string bytes(data, data + size);
  (void)sherd::net::check(bytes);
  sherd::net::check_frames(sherd::test::FuzzBytes({data, size}));
  return 0;
}
