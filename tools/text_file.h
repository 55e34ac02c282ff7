// SPDX-License-Identifier: Apache-2.0
//
// A whole file as text. Thread rule: any thread.
#pragma once

#include <fstream>
#include <optional>
#include <sstream>
#include <string>

namespace sherd::tools {

// Nothing where it cannot be read.
inline std::optional<std::string> text_of_file(const std::string& path) {
  std::ostringstream text;
  std::ifstream file(path, std::ios::binary);
  if (file && file.peek() != std::ifstream::traits_type::eof()) {
    text << file.rdbuf();  // No characters at all would be a failure.
  }
  const bool read = file.is_open() && !file.bad() && !text.fail();
  return read ? std::optional(text.str()) : std::nullopt;
}

}  // namespace sherd::tools
