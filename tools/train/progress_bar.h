// SPDX-License-Identifier: Apache-2.0
//
// A bar for commands that take long, on stderr if that is a terminal. Thread rule: one thread per
// bar.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace sherd::tools {

// "1.5 GB", "12 kB": three digits, powers of 1000.
std::string bytes_text(std::int64_t bytes);

// "verify [#####     ]  50 %  1.5 of 3 GB", without end of line.
std::string progress_line(
    const std::string& what, std::int64_t done, std::int64_t all);

// Redraws it at each percent; an empty line ends it. Does nothing if stderr is no terminal.
std::function<void(std::int64_t done, std::int64_t all)> progress_bar(
    const std::string& what);

}  // namespace sherd::tools
