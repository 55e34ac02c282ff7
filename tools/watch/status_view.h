// SPDX-License-Identifier: Apache-2.0
//
// What `sherd top` shows of a coordinator: its /status.json as lines. Pure
// functions. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <string>

namespace sherd::tools {

// Lines of at most `columns` characters. Throws Error (kUnavailable), naming the address, for a
// text that is no status of a coordinator.
std::string status_view(
    const std::string& json_text,
    const std::string& address,
    std::size_t columns);

}  // namespace sherd::tools
