// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sherd::ft::transfer {

std::uint64_t digest_of(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::vector<std::uint64_t> digests_of_chunks(
    std::string_view bytes, std::uint32_t chunk_bytes) {
  std::vector<std::uint64_t> digests;
  digests.reserve(bytes.size() / chunk_bytes + 1);
  while (!bytes.empty()) {
    digests.push_back(digest_of(bytes.substr(0, chunk_bytes)));
    bytes = bytes.size() > chunk_bytes ? bytes.substr(chunk_bytes)
                                       : std::string_view();
  }
  return digests;
}

}  // namespace sherd::ft::transfer
