// SPDX-License-Identifier: Apache-2.0
//
// FuzzBytes hands out a fuzzer's input byte by byte. A value. Thread rule: one
// thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace sherd::test {

class FuzzBytes {
 public:
  explicit FuzzBytes(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool empty() const { return bytes_.empty(); }

  // 0 at the end.
  std::uint8_t next() {
    if (bytes_.empty()) {
      return 0;
    }
    const std::uint8_t byte = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return byte;
  }

  // What next() has not given.
  std::string rest() const { return {bytes_.begin(), bytes_.end()}; }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace sherd::test
