// SPDX-License-Identifier: Apache-2.0
//
// Ranges of bytes, and the helpers that every file of the communicator needs.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>

namespace sherd::c10d_shm {

using Bytes = std::span<std::byte>;

inline std::size_t index(int rank) { return static_cast<std::size_t>(rank); }

// Does nothing if both are the same, or if there are no bytes.
inline void copy_bytes(const void* from, void* to, std::size_t bytes) {
  if (bytes > 0 && from != to) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace sherd::c10d_shm
