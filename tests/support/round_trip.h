// SPDX-License-Identifier: Apache-2.0
//
// For fuzzers of decoders: any bytes are either refused with a sentence or, once read, written
// again as the same bytes; bytes that were written and not damaged are accepted. Thread rule: pure
// functions.
#pragma once

#include <cstdint>
#include <string>
#include "base/check.h"
#include "base/status.h"
#include "support/fuzz_bytes.h"

namespace sherd::test {

// Returns whether it was accepted.
template <typename T, typename Bytes>
bool check_round_trip(const Result<T>& result, const Bytes& bytes) {
  if (!result.ok()) {
    SHERD_ASSERT(!result.status().message().empty(), "no reason");
    return false;
  }
  SHERD_ASSERT(bytes_of(result.value()) == bytes, "not what was read");
  return true;
}

template <auto decode>
bool comes_back(const std::string& bytes) {
  return check_round_trip(decode(bytes), bytes);
}

// Checks bytes as a peer writes them, damaged as the input says or not at all. `check` returns
// whether they were accepted.
template <typename Bytes, typename Check>
void check_damaged(Bytes bytes, Check check, FuzzBytes& input) {
  const bool damaged = damage(bytes, input);
  const bool read = check(bytes);
  SHERD_ASSERT(read || damaged, "refused what was written");
}

// The bytes with the version in front, which few inputs would begin with.
inline std::string with_version(
    std::uint16_t version, const std::string& bytes) {
  const char low = static_cast<char>(version & 0xFFU);
  const char high = static_cast<char>(version >> 8U);
  return std::string{low, high} + bytes;
}

}  // namespace sherd::test
