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
  std::string refused;  // Why it is not taken; "" when it is.
  bool named = false;   // By an argument, not found in a folder.
};

// The files of the arguments, and those below folders, in the byte order of their paths; hidden
// files and folders are left out without a word. Throws Error when an argument is not there, or a
// folder cannot be read.
std::vector<InputFile> input_files(const std::vector<std::string>& arguments);

// Why a file with this content is no text: empty, with a NUL byte, not UTF-8; "" when it is text.
std::string text_problem(std::string_view content);

}  // namespace sherd::tools
