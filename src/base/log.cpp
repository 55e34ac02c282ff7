// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

namespace sherd {

void log_line(LogLevel level, const std::string& message) {
  std::string line = "sherd: ";
  if (level == LogLevel::kWarning) {
    line += "warning: ";
  } else if (level == LogLevel::kError) {
    line += "error: ";
  }
  line += message + "\n";
  // A single write call, so that lines of several threads and ranks do not mix. A closed stderr is
  // ignored.
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace sherd
