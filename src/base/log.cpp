// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

namespace sherd {
namespace {

void write_line(const char* kind, const std::string& message) {
  const std::string line = std::string("sherd: ") + kind + message + "\n";
  // A single write call, so that lines of several threads and ranks do not mix. A closed stderr is
  // ignored.
  [[maybe_unused]] const auto written =
      ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

void log_info(const std::string& message) { write_line("", message); }
void log_warning(const std::string& message) {
  write_line("warning: ", message);
}
void log_error(const std::string& message) { write_line("error: ", message); }

}  // namespace sherd
