// SPDX-License-Identifier: Apache-2.0
//
// XXH3 with 64 bits (https://xxhash.com), of chunks of a tensor's bytes: a part
// of a tensor can be checked without reading the rest. Against broken disks and
// memory, not against people. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::ckpt {

constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;

std::uint64_t checksum(const void* bytes, std::size_t count);

inline std::int64_t chunks_of(std::int64_t bytes) {
  return (bytes + kChunkBytes - 1) / kChunkBytes;
}

// 16 digits each, one after another.
std::string hex_of(const std::vector<std::uint64_t>& checksums);
// False: it is not that.
bool parse_hex(std::string_view text, std::vector<std::uint64_t>& checksums);

}  // namespace sherd::ckpt
