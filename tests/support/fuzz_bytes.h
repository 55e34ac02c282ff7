// SPDX-License-Identifier: Apache-2.0
//
// FuzzBytes hands out a fuzzer's input byte by byte, and damage() uses it to damage valid bytes.
// Thread rule: a value; one thread.
#pragma once

#include <array>
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

  // The next eight bytes, as the seed of a recipe.
  std::uint64_t seed() {
    std::uint64_t seed = 0;
    for (std::size_t i = 0; i < sizeof seed; ++i) {
      seed = seed << 8U | next();
    }
    return seed;
  }

  // The bytes that next() has not returned.
  std::string rest() const { return {bytes_.begin(), bytes_.end()}; }

 private:
  std::span<const std::uint8_t> bytes_;
};

// Bytes worth trying in numbers and in JSON; the terminating NUL is one of them.
inline constexpr auto kLikedInNumbers = std::to_array("\x01\x7f\x80\xff");
inline constexpr auto kLikedInJson =
    std::to_array("{}[]:,\"\\ -.0123456789etfn_\n\xff");

// Changes up to four bytes, mostly to one of `liked`. Returns whether any were changed.
inline bool damage(
    std::span<char> bytes,
    FuzzBytes& input,
    std::span<const char> liked = kLikedInNumbers) {
  const int damages = bytes.empty() ? 0 : input.next() % 5;
  for (int i = 0; i < damages; ++i) {
    const std::size_t low = input.next();
    const std::size_t at = low + std::size_t{256} * input.next();
    const std::uint8_t byte = input.next();
    bytes[at % bytes.size()] = byte < 192 ? liked[byte % liked.size()]
                                          : static_cast<char>(input.next());
  }
  return damages > 0;
}

}  // namespace sherd::test
