// SPDX-License-Identifier: Apache-2.0
//
// Parses any bytes as a header and as the payload of each kind of frame: they are either refused
// with a sentence or written again as the same bytes. The same holds for the bytes of real frames
// of which some are damaged; undamaged ones are always accepted. Nothing is thrown.
#include <algorithm>
#include <cstdint>
#include <string>
#include "base/check.h"
#include "base/crc32c.h"
#include "ft/ring/frame.h"
#include "ft/ring/frame_testing.h"
#include "net/bytes.h"
#include "support/round_trip.h"

namespace sherd::ft::ring {
namespace {

using sherd::test::check_damaged;
using sherd::test::check_round_trip;

// A header as a neighbour might have written it: with magic, version and checksum.
HeaderBytes with_checksum(HeaderBytes bytes) {
  constexpr std::size_t kMagicAndVersion = 6;
  std::copy_n(bytes_of(FrameHeader()).begin(), kMagicAndVersion, bytes.begin());
  constexpr std::size_t kSummed = kHeaderBytes - sizeof(std::uint32_t);
  net::ByteWriter end;
  end.u32(crc32c({bytes.data(), kSummed}));
  std::copy(end.bytes().begin(), end.bytes().end(), bytes.begin() + kSummed);
  return bytes;
}

// Parses the bytes unchanged and with the right checksum; returns whether the latter were accepted.
bool check_header(const HeaderBytes& bytes) {
  check_round_trip(parse_header(bytes), bytes);
  const HeaderBytes summed = with_checksum(bytes);
  return check_round_trip(parse_header(summed), summed);
}

void check_readable(const std::string& text) {
  SHERD_ASSERT(
      std::all_of(
          text.begin(), text.end(),
          [](char c) { return c >= ' ' && c <= '~'; }),
      "a terminal would obey it");
}

// Compares, except for what is replaced because a terminal would obey it.
void check_again(const std::string& again, const std::string& payload) {
  SHERD_ASSERT(
      std::equal(
          again.begin(), again.end(), payload.begin(), payload.end(),
          [](char now, char before) { return now == before || now == '?'; }),
      "not what was read");
}

// Returns whether it was accepted.
template <auto parse>
bool check_payload(const std::string& payload) {
  const auto result = parse(payload);
  if (!result.ok()) {
    SHERD_ASSERT(!result.status().message().empty(), "no reason");
    return false;
  }
  check_again(frame_of(Epoch{}, result.value()).substr(kHeaderBytes), payload);
  return true;
}

bool check_challenge(const std::string& payload) {
  const auto challenge = parse_challenge(payload);
  SHERD_ASSERT(
      !challenge.ok() ||
          challenge_frame(challenge.value()).substr(kHeaderBytes) == payload,
      "not what was read");
  return challenge.ok();
}

bool check_ending(const std::string& payload) {
  const auto ending = parse_ending(payload);
  check_readable(ending.ok() ? ending.value().reason : std::string());
  return check_payload<parse_ending>(payload);
}

bool check_refusal(const std::string& payload) {
  const std::string reason = parse_refusal(payload);
  check_readable(reason);
  check_again(reason, payload.substr(0, reason.size()));
  return reason.size() == payload.size();
}

void check_payloads(const std::string& payload) {
  (void)check_payload<parse_handshake>(payload);
  (void)check_ending(payload);
  (void)check_refusal(payload);
}

using Check = bool (*)(const std::string&);

void check_frame(
    const std::string& frame, Check check, sherd::test::FuzzBytes& input) {
  HeaderBytes header = {};
  std::copy_n(frame.begin(), header.size(), header.begin());
  check_damaged(header, check_header, input);
  check_damaged(frame.substr(kHeaderBytes), check, input);
}

void check_frames(sherd::test::FuzzBytes input) {
  test::RandomMessages random(input.seed());
  check_damaged(bytes_of(random_header(random)), check_header, input);
  const Epoch epoch = random.epoch();
  check_frame(
      frame_of(epoch, random_handshake(random)), check_payload<parse_handshake>,
      input);
  check_frame(frame_of(epoch, random_ending(random)), check_ending, input);
  check_frame(refusal_frame(epoch, random.text()), check_refusal, input);
  check_frame(challenge_frame(random.word()), check_challenge, input);
}

// Parses the bytes unchanged, and closer to valid frames.
void check_bytes(const std::string& whole) {
  HeaderBytes header = {};
  std::copy_n(
      whole.begin(), std::min(whole.size(), header.size()), header.begin());
  (void)check_header(header);
  // An existing kind, which few inputs would have.
  header[6] = static_cast<char>(static_cast<unsigned char>(header[6]) % 7);
  header[7] = 0;
  (void)check_header(header);
  check_payloads(whole);
  // As long as a handshake, or as the text of an ending says.
  const auto hello_bytes = frame_of(Epoch(), Handshake()).size() - kHeaderBytes;
  check_payloads(
      (whole + std::string(hello_bytes, 'x')).substr(0, hello_bytes));
  net::ByteWriter ending;
  ending.u8(static_cast<std::uint8_t>(whole.size() % 8));
  ending.u32(1);
  ending.u32(2);
  ending.i64(3);
  ending.text(whole);
  check_payloads(ending.take());
}

}  // namespace
}  // namespace sherd::ft::ring

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  using namespace sherd::ft::ring;  // NOLINT(google-build-using-namespace)
  check_bytes(std::string(data, data + size));
  check_frames(sherd::test::FuzzBytes({data, size}));
  return 0;
}
