// SPDX-License-Identifier: Apache-2.0
#include "ckpt/checksum.h"

#include "base/parse_number.h"

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
    const auto value = parse_number<std::uint64_t>(text.substr(0, kDigits), 16);
    if (!value) {
      return false;
    }
    checksums.push_back(*value);
  }
  return true;
}

}  // namespace sherd::ckpt
