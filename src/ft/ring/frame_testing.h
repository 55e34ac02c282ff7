// SPDX-License-Identifier: Apache-2.0
//
// Random headers and payloads of a ring's frames, for tests and fuzzers. Thread
// rule: one thread.
#pragma once

#include <cstdint>
#include "ft/ring/frame.h"
#include "ft/wire/messages_testing.h"

namespace sherd::ft::test {

inline std::uint16_t random_short(RandomMessages& random) {
  return static_cast<std::uint16_t>(random.word());
}

// Makes headers of data frames, sent or shared; frame_of() makes those of other frames.
inline ring::FrameHeader random_header(RandomMessages& random) {
  ring::FrameHeader header;
  header.kind =
      random.coin() ? ring::FrameKind::kData : ring::FrameKind::kSharedData;
  header.epoch = random.epoch();
  header.step = random.positive();
  header.slice = random.positive();
  header.bucket = random.half();
  header.segment = random_short(random);
  header.ring_step = random_short(random);
  header.first_element = random.positive();
  header.payload_bytes = random.half();
  header.payload_checksum = random.half();
  header.place = random.word();
  header.lease = random.word();
  header.factor = static_cast<float>(random.half()) / 1024;
  return header;
}

inline net::MessageCode random_proof(RandomMessages& random) {
  net::MessageCode proof = {};
  for (char& byte : proof) {
    byte = static_cast<char>(random.word());
  }
  return proof;
}

inline ring::Handshake random_handshake(RandomMessages& random) {
  return {
      random.word(),
      random.half(),
      random.word(),
      random.half(),
      random.word(),
      random.half(),
      random.half(),
      random.half(),
      random.word(),
      random.word(),
      random.word(),
      random.word(),
      {random.half(), random.half(), random.word()},
      random.word(),
      random.word(),
      random_proof(random)};
}

inline RingEnding random_ending(RandomMessages& random) {
  constexpr auto kFaults =
      static_cast<std::uint64_t>(RingFault::kResources) + 1;
  return {
      static_cast<RingFault>(random.below(kFaults)), random.half(),
      random.half(), random.positive(), random.text()};
}

}  // namespace sherd::ft::test
