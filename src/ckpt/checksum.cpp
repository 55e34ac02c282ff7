// SPDX-License-Identifier: Apache-2.0
#include "ckpt/checksum.h"

#include <charconv>

namespace sherd::ckpt {
namespace {

constexpr std::size_t kDigits = 16;

}  // namespace

std::string hex_of(const std::vector<std::uint64_t>& checksums) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  text.reserve(checksums.size() * kDigits);
  for (const auto one : checksums) {
    for (int shift = 60; shift >= 0; shift -= 4) {
      text += kHex[(one >> shift) & 15U];
    }
  }
  return text;
}

bool parse_hex(std::string_view text, std::vector<std::uint64_t>& checksums) {
  checksums.clear();
  if (text.size() % kDigits != 0) {
    return false;
  }
  for (; !text.empty(); text.remove_prefix(kDigits)) {
    std::uint64_t value = 0;
    const auto* end = text.data() + kDigits;
    const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
    if (error != std::errc() || stop != end) {
      return false;
    }
    checksums.push_back(value);
  }
  return true;
}

}  // namespace sherd::ckpt
