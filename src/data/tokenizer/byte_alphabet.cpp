// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/byte_alphabet.h"

#include <array>
#include "data/tokenizer/utf8.h"

namespace sherd::data {
namespace {

constexpr std::uint32_t kFirstStandIn = 0x100;
constexpr std::size_t kAlphabetEnd = 0x100 + 68;

bool is_printable(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

std::array<std::uint32_t, 256> alphabet() {
  std::array<std::uint32_t, 256> characters{};
  auto next = kFirstStandIn;
  for (unsigned byte = 0; byte < 256; ++byte) {
    characters[byte] = is_printable(byte) ? byte : next++;
  }
  return characters;
}

// -1 for characters that stand for no byte.
std::array<int, kAlphabetEnd> bytes() {
  std::array<int, kAlphabetEnd> result{};
  result.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    result[character_of_byte(static_cast<unsigned char>(byte))] = byte;
  }
  return result;
}

}  // namespace

std::uint32_t character_of_byte(unsigned char byte) {
  static const auto kCharacters = alphabet();
  return kCharacters[byte];
}

std::optional<std::string> bytes_of_token(std::string_view token) {
  static const auto kBytes = bytes();
  std::string result;
  for (std::size_t at = 0; at < token.size();) {
    const auto character = character_at(token, at);
    if (character >= kAlphabetEnd || kBytes[character] < 0) {
      return std::nullopt;
    }
    result += static_cast<char>(kBytes[character]);
    at += character_bytes(token, at);
  }
  return result;
}

}  // namespace sherd::data
