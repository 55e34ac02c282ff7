// SPDX-License-Identifier: Apache-2.0
//
// CRC32C (Castagnoli), of messages: against broken memory, cables and programs,
// not against people. It notices each error of up to 32 neighbouring bits. Uses
// the processor's instruction where there is one. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sherd::net {

// Of what `before` is the checksum of, followed by these bytes:
// crc32c(b, n, crc32c(a, m)) is the checksum of a and b in a row.
std::uint32_t crc32c(
    const void* bytes, std::size_t count, std::uint32_t before = 0);

inline std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0) {
  return crc32c(bytes.data(), bytes.size(), before);
}

// The same without the instruction, for processors that lack it.
std::uint32_t crc32c_by_table(
    const void* bytes, std::size_t count, std::uint32_t before = 0);

}  // namespace sherd::net
