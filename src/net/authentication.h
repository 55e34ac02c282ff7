// SPDX-License-Identifier: Apache-2.0
//
// Proofs that a peer knows a key, for connections that are not encrypted: it returns the
// authentication code of its message and of a number that the other side has drawn for this
// connection only. Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace sherd::net {

// Drawn by the system's generator; never 0.
std::uint64_t random_number();

// HMAC-SHA256 (RFC 2104).
using MessageCode = std::array<char, 32>;
MessageCode message_code(std::string_view key, std::string_view message);

// Takes a time that does not depend on where they differ.
bool same_code(const MessageCode& one, const MessageCode& other);

}  // namespace sherd::net
