// SPDX-License-Identifier: Apache-2.0
//
// How one program of the sherd command becomes another one. Thread rule: one thread.
#pragma once

#include <string>
#include <string_view>

namespace sherd::tools {

// Where the program of that name would be: beside this one.
std::string path_beside(std::string_view program);

// Becomes that program, with the words from argv[0] on. Returns 1, and only when that cannot be,
// once it has said why and what helps.
int exec_beside(std::string_view program, const char* remedy, char** argv);

}  // namespace sherd::tools
