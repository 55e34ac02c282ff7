// SPDX-License-Identifier: Apache-2.0
//
// XXH3 (64 bits) of what is transferred, and of each chunk of it. Thread rule:
// pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace sherd::ft::transfer {

std::uint64_t digest_of(std::string_view bytes);

// In their order; the last chunk may be shorter.
std::vector<std::uint64_t> digests_of_chunks(
    std::string_view bytes, std::uint32_t chunk_bytes);

}  // namespace sherd::ft::transfer
