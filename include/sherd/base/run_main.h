// SPDX-License-Identifier: Apache-2.0
//
// run_main() is the body of a program's main(): what the program throws becomes one line on stderr
// and an exit status, where std::terminate() would print LibTorch's C++ stack and abort.
//
//   int main(int argc, char** argv) {
//     return sherd::run_main(argc, argv, [&] { return train(argc, argv); });
//   }
//
// Besides, what a program that embeds another language, as the Python package does, gives to sherd: how
// its users see errors, when its threads stop waiting, and that it was forked. That belongs to the
// process; the first two are set before any model is sharded.
//
// Thread rule: run_main() on the main thread, the others on any.
#pragma once

#include <functional>
#include <string>
#include <sherd/base/error.h>

namespace sherd {

// Returns what `body` returns. When it throws, prints "PROGRAM: MESSAGE" once, where PROGRAM is the
// last part of argv[0], and returns 2 after an Error with kInvalidArgument, which the same command
// line will bring again, and 1 after any other exception. Lines on stdout appear when they are complete,
// also in a pipe. Throws nothing.
int run_main(int argc, char** argv, const std::function<int()>& body);

// What the message of an exception says, without the C++ stack that LibTorch appends to its own.
std::string without_backtrace(const std::string& message);

// Called where an Error would leave an operator or a hook of a backward, for code that is not
// sherd's. It may throw something else instead; if it returns, the Error itself goes on. Called on
// any thread, without any lock of sherd. Null: none.
using ErrorTranslator = void (*)(const Error& error);
void set_error_translator(ErrorTranslator translator);

// Called some twenty times a second by each thread that waits for other ranks: whether the program
// wishes that this thread stops waiting, as it does at Ctrl-C. The wait then fails with kAborted, the
// model's handle with it, and the other ranks learn that this one has given up. Locks of sherd are
// held, so that it must not call sherd. Null: never.
using InterruptCheck = bool (*)();
void set_interrupt_check(InterruptCheck check);
// Whether this thread runs the check. A parameter of a model that is used there is an error.
bool in_interrupt_check();

// For the child of a fork, to which neither sherd's threads nor its ranks belong: every use of a
// parameter that is sharded or replicated is an error there from now on, instead of a wait without
// end. For good.
void forbid_after_fork();

}  // namespace sherd
