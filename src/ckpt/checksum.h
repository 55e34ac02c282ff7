// SPDX-License-Identifier: Apache-2.0
//
// Checksums of 1 MiB chunks of a tensor's bytes, so that a part of a tensor can be verified without
// reading the rest: 64-bit XXH3 (https://xxhash.com), against broken disks and memory, not against
// deliberate changes. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>
#include "base/digest.h"

namespace sherd::ckpt {

constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

inline std::uint64_t checksum(const void* bytes, std::size_t count) {
  return digest_of(bytes, count);
}

inline std::int64_t chunks_of(std::int64_t bytes) {
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

// The checksums as 16 hexadecimal digits each, one after another.
std::string hex_of(const std::vector<std::uint64_t>& checksums);
// The inverse of hex_of(); false for any other text.
bool parse_hex(std::string_view text, std::vector<std::uint64_t>& checksums);

}  // namespace sherd::ckpt
