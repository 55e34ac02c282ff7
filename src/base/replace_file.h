// SPDX-License-Identifier: Apache-2.0
//
// Writing whole files so that a reader, also one after a power loss, finds the old content or the
// new one, never a part. Failures are kUnavailable and name path, action and the system's reason.
// Thread rule: any thread; of several that write one path the last wins.
#pragma once

#include <string>
#include <string_view>
#include "base/status.h"

namespace sherd {

// Writes the file under another name beside `path`, makes it durable, and moves it there. What was
// there stays on failure.
Status replace_file(const std::string& path, std::string_view content);

// The second half, for a file that was written in pieces: makes `draft`, which lies in the folder of
// `path`, durable and moves it there.
Status publish_file(const std::string& draft, const std::string& path);

}  // namespace sherd
