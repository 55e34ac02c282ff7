// SPDX-License-Identifier: Apache-2.0
//
// For fuzzers of decoders: what is read of any bytes is refused with a sentence, or
// is written again as the same bytes. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include "base/check.h"
#include "base/status.h"

namespace sherd::test {

template <typename T>
void check_round_trip(const Result<T>& result, const std::string& bytes) {
  if (!result.ok()) {
    SHERD_ASSERT(!result.status().message().empty(), "no reason");
    return;
  }
  SHERD_ASSERT(bytes_of(result.value()) == bytes, "not what was read");
}

// With the version in front that few inputs would begin with.
inline std::string with_version(
    std::uint16_t version, const std::string& bytes) {
  const char low = static_cast<char>(version & 0xFFU);
  const char high = static_cast<char>(version >> 8U);
  return std::string{low, high} + bytes;
}

}  // namespace sherd::test
