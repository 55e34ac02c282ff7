// SPDX-License-Identifier: Apache-2.0
//
// CRC32C (Castagnoli) checksums of messages. They detect damage, including every error burst of up
// to 32 bits, but not deliberate changes. Uses the processor's instruction if there is one. Thread
// rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sherd {

// Continues from `before`, the checksum of the preceding bytes: crc32c(b, n, crc32c(a, m)) is the
// checksum of a followed by b.
std::uint32_t crc32c(
    const void* bytes, std::size_t count, std::uint32_t before = 0);

inline std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0) {
  return crc32c(bytes.data(), bytes.size(), before);
}

// The fallback for processors without the instruction.
std::uint32_t crc32c_by_table(
    const void* bytes, std::size_t count, std::uint32_t before = 0);

}  // namespace sherd
