// SPDX-License-Identifier: Apache-2.0
//
// Reasons, hosts and names in a message are whatever its sender has written. They
// reach logs, pages and terminals by many ways, in sentences of others too: so
// whoever takes a message makes them harmless at once. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include "ft/protocol/messages.h"

namespace sherd::ft {

// Of one text. What is longer is cut: the bytes of a message may hold more, but
// failures are kept, and shown.
inline constexpr std::size_t kShownBytesMax = 1000;

// The same message with printable texts.
Report with_printable_texts(Report report);
RunView with_printable_texts(RunView view);

}  // namespace sherd::ft
