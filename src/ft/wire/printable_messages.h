// SPDX-License-Identifier: Apache-2.0
//
// Makes the texts of a received message printable. Reasons, hosts and names are whatever the sender
// has written, and reach logs, pages and terminals by many ways, so that the receiver of a message
// sanitizes them at once. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include "ft/protocol/messages.h"

namespace sherd::ft {

// Longer texts are cut: a message may hold more, but failures are kept in memory and shown.
inline constexpr std::size_t kShownBytesMax = 1000;

Report with_printable_texts(Report report);
RunView with_printable_texts(RunView view);

}  // namespace sherd::ft
