// SPDX-License-Identifier: Apache-2.0
//
// Whole files as text. Thread rule: any thread.
#pragma once

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <sherd/base/error.h>

namespace sherd::tools {

// Nothing if it cannot be read.
inline std::optional<std::string> text_of_file(const std::string& path) {
  std::ostringstream text;
  std::ifstream file(path, std::ios::binary);
  if (file && file.peek() != std::ifstream::traits_type::eof()) {
    text << file.rdbuf();  // Writing no characters at all would set failbit.
  }
  const bool read = file.is_open() && !file.bad() && !text.fail();
  return read ? std::optional(text.str()) : std::nullopt;
}

// Throws Error, naming the path, if it cannot be read.
inline std::string text_in(const std::string& path) {
  errno = 0;
  auto text = text_of_file(path);
  if (!text) {
    const std::string reason = errno == 0 ? "none" : std::strerror(errno);
    throw Error(path + ": expected a file that can be read, found " + reason);
  }
  return *std::move(text);
}

}  // namespace sherd::tools
