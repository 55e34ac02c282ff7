// SPDX-License-Identifier: Apache-2.0
//
// Log lines on stderr: "sherd: warning: ...". The launcher's prefix shows which rank wrote a line.
// Thread rule: any thread; each line is written as a whole.
#pragma once

#include <string>

namespace sherd {

enum class LogLevel { kInfo, kWarning, kError };

void log_line(LogLevel level, const std::string& message);

inline void log_info(const std::string& m) { log_line(LogLevel::kInfo, m); }
inline void log_warning(const std::string& m) {
  log_line(LogLevel::kWarning, m);
}
inline void log_error(const std::string& m) { log_line(LogLevel::kError, m); }

}  // namespace sherd
