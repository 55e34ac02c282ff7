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
  const std::ifstream file(path, std::ios::binary);
  text << file.rdbuf();
  return file && !text.fail() ? std::optional(text.str()) : std::nullopt;
}

}  // namespace sherd::tools
