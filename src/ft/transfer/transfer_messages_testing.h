// SPDX-License-Identifier: Apache-2.0
//
// Random values of a transfer's messages, for tests and fuzzers. Thread rule: one
// thread.
#pragma once

#include <cstdint>
#include "ft/transfer/transfer_messages.h"
#include "ft/wire/messages_testing.h"

namespace sherd::ft::test {

inline transfer::TransferRequest random_request(RandomMessages& random) {
  return {
      static_cast<transfer::RequestKind>(random.below(3)), random.word(),
      random.half(), random.state(), random.half()};
}

inline transfer::Refusal random_refusal(RandomMessages& random) {
  return {static_cast<transfer::RefusalReason>(random.below(3)), random.text()};
}

// It has few chunks, some of them short.
inline transfer::TransferAnswer random_answer(RandomMessages& random) {
  transfer::TransferAnswer answer;
  answer.kind = static_cast<transfer::RequestKind>(random.below(3));
  answer.state = random.state();
  answer.commit = random.commit();
  answer.bytes = random.word();
  answer.chunk_bytes = static_cast<std::uint32_t>(
      1 + random.below(transfer::kChunkBytesMax >> random.below(20)));
  if (answer.kind == transfer::RequestKind::kFetchSnapshot) {
    answer.bytes = random.below(4 * std::uint64_t{answer.chunk_bytes} + 1);
    answer.digests.resize(
        transfer::chunks_of(answer.bytes, answer.chunk_bytes), random.word());
  }
  return answer;
}

}  // namespace sherd::ft::test
