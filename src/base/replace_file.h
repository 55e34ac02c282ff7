// SPDX-License-Identifier: Apache-2.0
//
// Writes whole files so that a reader, even one after a power loss, finds either the old content or
// the new one, never a part. Failures are kUnavailable and name the path, the action and the
// system's reason. Thread rule: any thread; if several write the same path, the last one wins.
#pragma once

#include <string>
#include <string_view>
#include "base/status.h"

namespace sherd {

// Writes the file under another name beside `path`, makes it durable, and renames it to `path`. On
// failure the old file stays, unless only its folder could not be made durable: then the new one is
// there, and a power loss may bring the old one back.
Status replace_file(const std::string& path, std::string_view content);

// The second half of replace_file(), for a file that was written in pieces: makes `draft`, which is
// in the folder of `path`, durable and renames it. Fails like that.
Status publish_file(const std::string& draft, const std::string& path);

// Removes what replace_file() has left beside `path` in processes that were killed. One that writes
// `path` meanwhile may fail.
void remove_drafts(const std::string& path);

}  // namespace sherd
