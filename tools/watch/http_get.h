// SPDX-License-Identifier: Apache-2.0
//
// The client of a status page. Thread rule: pure functions but for the network.
#pragma once

#include <string>

namespace sherd::tools {

// The body that HTTP GET of `path` brings from "HOST:PORT", within some seconds.
// Throws Error (kUnavailable), naming the address, when nobody listens there or
// what answers is no such server; (kInvalidArgument) when the address is none.
std::string http_get(const std::string& address, const std::string& path);

// The body of a whole answer. Throws Error (kUnavailable), which calls it
// `address`'s, unless it is HTTP/1 with status 200.
std::string http_body(const std::string& answer, const std::string& address);

}  // namespace sherd::tools
