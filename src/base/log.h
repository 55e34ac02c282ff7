// SPDX-License-Identifier: Apache-2.0
//
// Log lines on stderr: "sherd: warning: ...". The launcher's prefix shows which rank wrote a line.
// Thread rule: any thread; each line is written as a whole.
#pragma once

#include <string>

namespace sherd {

void log_info(const std::string& message);
void log_warning(const std::string& message);
void log_error(const std::string& message);

}  // namespace sherd
