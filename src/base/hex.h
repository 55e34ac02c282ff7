// SPDX-License-Identifier: Apache-2.0
//
// Hashes as text. Thread rule: any thread.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <string>

namespace sherd {

// The value as 16 hexadecimal digits.
inline std::string hex(std::uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%016" PRIx64, value);
  return text;
}

}  // namespace sherd
