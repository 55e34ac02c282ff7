// SPDX-License-Identifier: Apache-2.0
//
// 64-bit XXH3 digests (https://xxhash.com) of large memory: states, sums, tensors and files. They
// detect damage and differences, but not deliberate changes. For fingerprints of a few fields use
// base/hash.h. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sherd {

std::uint64_t digest_of(const void* bytes, std::size_t count);

inline std::uint64_t digest_of(std::string_view bytes) {
  return digest_of(bytes.data(), bytes.size());
}

// One digest for each chunk, in order; the last chunk may be shorter.
std::vector<std::uint64_t> digests_of_chunks(
    std::string_view bytes, std::uint32_t chunk_bytes);

}  // namespace sherd
