// SPDX-License-Identifier: Apache-2.0
#include "base/printable.h"

#include <algorithm>
#include <array>
#include <utility>

namespace sherd {

std::string printable(std::string_view text, std::size_t bytes_max) {
  std::string result(text.substr(0, bytes_max));
  std::replace_if(
      result.begin(), result.end(), [](char c) { return c < ' ' || c > '~'; },
      '?');
  return result;
}

std::string_view shortened(std::string_view text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) {
    return text;
  }
  const auto continues = [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
  };
  while (bytes_max > 0 && continues(text[bytes_max])) {
    --bytes_max;
  }
  text.remove_suffix(text.size() - bytes_max);
  return text;
}

std::string html_escaped(std::string_view text) {
  using Escape = std::pair<char, std::string_view>;
  constexpr std::array<Escape, 5> kEscapes = {
      {{'<', "&lt;"},
       {'>', "&gt;"},
       {'&', "&amp;"},
       {'"', "&quot;"},
       {'\'', "&#39;"}}};
  std::string escaped;
  for (const char c : text) {
    const auto* found = std::ranges::find(kEscapes, c, &Escape::first);
    escaped +=
        found == kEscapes.end() ? std::string_view(&c, 1) : found->second;
  }
  return escaped;
}

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : printable(text, text.size())) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
    }
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace sherd
