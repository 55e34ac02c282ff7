// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <sys/syscall.h>
#include <unistd.h>
#include <fstream>
#include <sstream>
#include <string>
#include "base/check.h"

namespace sherd {

Descriptor open_pidfd(int pid) {
  // Debian 12's libc headers lack the wrapper.
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0U)));
}

std::uint64_t process_start_ticks(int pid) {
  std::ifstream file(str("/proc/", pid, "/stat"));
  std::string line;
  std::getline(file, line);
  // The second field is the program's name in parentheses and may itself hold spaces and
  // parentheses. The start time is the 20th field after it.
  const auto name_end = line.rfind(')');
  if (name_end == std::string::npos) {
    return 0;
  }
  std::istringstream rest(line.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 19; ++i) {
    rest >> skipped;
  }
  std::uint64_t ticks = 0;
  return rest >> ticks ? ticks : 0;
}

}  // namespace sherd
