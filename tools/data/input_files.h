// SPDX-License-Identifier: Apache-2.0
//
// Which files `sherd data prepare` takes. Thread rule: pure functions of the file system.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sherd::tools {

struct InputFile {
  std::string path;
  std::string refused;  // Why it is not taken; "" if it is.
  bool named = false;   // Named by an argument, not found in a folder.
};

// The files that the arguments name, and those below folders, in the byte order of their paths; links
// are followed, and hidden files and folders are silently left out. Throws Error if an argument does
// not exist, or if a folder cannot be read.
std::vector<InputFile> input_files(const std::vector<std::string>& arguments);

// Why a file with this content is no text: it is empty, has a NUL byte, or is not UTF-8; "" if it
// is text.
std::string text_problem(std::string_view content);

}  // namespace sherd::tools
