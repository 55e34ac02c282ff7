// SPDX-License-Identifier: Apache-2.0
//
// How one program of the sherd command executes another one. Thread rule: one thread.
#pragma once

#include <string>
#include <string_view>

namespace sherd::tools {

// The path that the program of that name would have, next to this one.
std::string path_beside(std::string_view program);

// Replaces this process by that program, with the words from argv[0] on. Returns only if that
// fails: 1, after printing why and what helps.
int exec_beside(std::string_view program, const char* remedy, char** argv);

}  // namespace sherd::tools
