// SPDX-License-Identifier: Apache-2.0
//
// copy_bytes() is std::memcpy() for data that may be empty: the address of an empty tensor or vector
// may be null, which std::memcpy() does not allow even for 0 bytes. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstring>

namespace sherd {

inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace sherd
