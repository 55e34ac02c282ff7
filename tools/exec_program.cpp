// SPDX-License-Identifier: Apache-2.0
#include "exec_program.h"

#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace sherd::tools {

std::string path_beside(std::string_view program) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path() / program).string();
}

int exec_beside(std::string_view program, const char* remedy, char** argv) {
  const std::string path = path_beside(program);
  ::execv(path.c_str(), argv);
  std::fprintf(
      stderr, "sherd: cannot run '%s': %s; %s\n", path.c_str(),
      std::strerror(errno), remedy);
  return 1;
}

}  // namespace sherd::tools
