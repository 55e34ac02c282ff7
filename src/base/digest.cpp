// SPDX-License-Identifier: Apache-2.0
#include "base/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sherd {

std::uint64_t digest_of(const void* bytes, std::size_t count) {
  return XXH3_64bits(bytes, count);
}

std::vector<std::uint64_t> digests_of_chunks(
    std::string_view bytes, std::uint32_t chunk_bytes) {
  std::vector<std::uint64_t> digests;
  digests.reserve(bytes.size() / chunk_bytes + 1);
  while (!bytes.empty()) {
    const auto chunk = bytes.substr(0, chunk_bytes);
    digests.push_back(digest_of(chunk));
    bytes.remove_prefix(chunk.size());
  }
  return digests;
}

}  // namespace sherd
