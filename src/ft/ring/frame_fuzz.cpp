// SPDX-License-Identifier: Apache-2.0
//
// Any bytes are a header, and the payload of each kind of frame: they are refused
// with a sentence, or written again as the same bytes. Nothing is thrown.
#include <algorithm>
#include <cstdint>
#include <string>
#include "base/check.h"
#include "ft/ring/frame.h"
#include "net/bytes.h"
#include "net/crc32c.h"

namespace sherd::ft::ring {
namespace {

void check(const HeaderBytes& bytes) {
  const auto header = parse_header(bytes);
  if (!header.ok()) {
    SHERD_ASSERT(!header.status().message().empty(), "no reason");
    return;
  }
  SHERD_ASSERT(
      parse_header(bytes_of(header.value())).value() == header.value(),
      "not what was read");
}

// As a neighbour might have written it: with magic, version and checksum.
HeaderBytes with_checksum(HeaderBytes bytes) {
  constexpr std::size_t kMagicAndVersion = 6;
  std::copy_n(bytes_of(FrameHeader()).begin(), kMagicAndVersion, bytes.begin());
  constexpr std::size_t kSummed = kHeaderBytes - sizeof(std::uint32_t);
  net::ByteWriter end;
  end.u32(net::crc32c({bytes.data(), kSummed}));
  std::copy(end.bytes().begin(), end.bytes().end(), bytes.begin() + kSummed);
  return bytes;
}

template <typename T>
void check(const Result<T>& result, const std::string& payload) {
  if (!result.ok()) {
    SHERD_ASSERT(!result.status().message().empty(), "no reason");
    return;
  }
  const auto again = frame_of(Epoch{}, result.value()).substr(kHeaderBytes);
  SHERD_ASSERT(again.size() == payload.size(), "not what was read");
}

void check_readable(const std::string& text) {
  SHERD_ASSERT(
      std::all_of(
          text.begin(), text.end(),
          [](char c) { return c >= ' ' && c <= '~'; }),
      "a terminal would obey it");
}

void check_payload(const std::string& payload) {
  check(parse_hello(payload), payload);
  const auto ending = parse_ending(payload);
  check(ending, payload);
  check_readable(ending.ok() ? ending.value().reason : std::string());
  check_readable(parse_refusal(payload));
}

}  // namespace
}  // namespace sherd::ft::ring

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using namespace sherd::ft::ring;  // NOLINT(google-build-using-namespace)
  const std::string whole(data, data + size);
  HeaderBytes header = {};
  std::copy_n(data, std::min(size, header.size()), header.begin());
  check(header);
  check(with_checksum(header));
  // A kind that there is, which few inputs would have.
  header[6] = static_cast<char>(header[6] % 6);
  header[7] = 0;
  check(with_checksum(header));
  // As it is, and as long as a hello is, or as the text of an ending says.
  check_payload(whole);
  const auto hello_bytes =
      frame_of(sherd::ft::Epoch(), Hello()).size() - kHeaderBytes;
  check_payload((whole + std::string(hello_bytes, 'x')).substr(0, hello_bytes));
  sherd::net::ByteWriter ending;
  ending.u8(static_cast<std::uint8_t>(size % 8));
  ending.u32(1);
  ending.u32(2);
  ending.i64(3);
  ending.text(whole);
  check_payload(ending.take());
  return 0;
}
