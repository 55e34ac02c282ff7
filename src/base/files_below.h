// SPDX-License-Identifier: Apache-2.0
//
// What lies below a folder, for those who read all of it and must not miss a part of it without a
// word. Thread rule: a pure function of the file system.
#pragma once

#include <string>
#include <vector>
#include "base/status.h"

namespace sherd {

enum class HiddenFiles { kIncluded, kSkipped };

struct FileBelow {
  std::string path;
  std::string problem;  // "", or why it is no file: "a broken link".
};

// All files below the folder, in the byte order of their paths, which does not depend on the locale.
// Links are followed, also those to folders. What is neither file nor folder, a broken link and a
// link to a folder that contains it are there with their problem, unless they are hidden, as an
// editor's lock is. Names that begin with a dot are hidden. Fails with kUnavailable, naming the path,
// if a folder cannot be read.
Result<std::vector<FileBelow>> files_below(
    const std::string& folder, HiddenFiles hidden);

}  // namespace sherd
