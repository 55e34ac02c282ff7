// SPDX-License-Identifier: Apache-2.0
//
// Texts of other processes, made fit for a log and a terminal. Thread rule: pure
// functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sherd {

// Its first bytes, at most so many, each one that is not a printable character of
// ASCII as "?": neither another line nor a sequence that a terminal obeys.
std::string printable(std::string_view text, std::size_t bytes_max);

}  // namespace sherd
