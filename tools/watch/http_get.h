// SPDX-License-Identifier: Apache-2.0
//
// The client of a status page. Thread rule: pure functions except for the network.
#pragma once

#include <string>

namespace sherd::tools {

// The body of the answer to an HTTP GET of `path` from "HOST:PORT", within a few seconds. Throws
// Error (kUnavailable), naming the address, if nobody listens there or what answers is no such
// server; (kInvalidArgument) if the address is invalid.
std::string http_get(const std::string& address, const std::string& path);

// The body of a complete answer. Throws Error (kUnavailable), naming `address`, unless it is HTTP/1
// with status 200.
std::string http_body(const std::string& answer, const std::string& address);

}  // namespace sherd::tools
