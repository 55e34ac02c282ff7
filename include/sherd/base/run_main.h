// SPDX-License-Identifier: Apache-2.0
//
// run_main() is the body of a program's main(): what the program throws becomes one line on stderr
// and an exit status, where std::terminate() would print LibTorch's C++ stack and abort.
//
//   int main(int argc, char** argv) {
//     return sherd::run_main(argc, argv, [&] { return train(argc, argv); });
//   }
//
// Thread rule: the main thread.
#pragma once

#include <functional>
#include <string>

namespace sherd {

// Returns what `body` returns. When it throws, prints "PROGRAM: MESSAGE" once, where PROGRAM is the
// last part of argv[0], and returns 2 after an Error with kInvalidArgument, which the same command
// line will bring again, and 1 after any other exception. Throws nothing.
int run_main(int argc, char** argv, const std::function<int()>& body);

// What the message of an exception says, without the C++ stack that LibTorch appends to its own.
std::string without_backtrace(const std::string& message);

}  // namespace sherd
