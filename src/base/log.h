// SPDX-License-Identifier: Apache-2.0
//
// Log lines on stderr: "sherd: warning: ...". The launcher's prefix tells ranks apart. Thread rule:
// any thread; a line is written whole.
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
