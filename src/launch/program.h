// SPDX-License-Identifier: Apache-2.0
//
// The program that a command names, found as shells find it, and why it cannot be started, in the
// words and with the exit status of shells. Thread rule: any thread.
#pragma once

#include <string>

namespace sherd::launch {

// Why there is no process, and the exit status that shells use for it: 127 not found, 126 found but
// not executable, 1 no resources.
struct StartFailure {
  int exit_status = 1;
  std::string message;
};

struct ProgramLookup {
  std::string path;  // Empty if there is a failure.
  StartFailure failure;
};

// The file that `name` means: the name itself if it has a slash, otherwise the first executable of
// that name in the folders of `search_path`.
ProgramLookup find_program(
    const std::string& name, const std::string& search_path);

// The failure of execve() with this errno, saying what may be wrong with the file.
StartFailure exec_failure(const std::string& path, int error);

}  // namespace sherd::launch
