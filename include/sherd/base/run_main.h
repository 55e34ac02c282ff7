// SPDX-License-Identifier: Apache-2.0
//
// run_main() is the body of a program's main(). It turns an exception of the program into one line
// on stderr and an exit status, where std::terminate() would print LibTorch's C++ stack and abort.
//
//   int main(int argc, char** argv) {
//     return sherd::run_main(argc, argv, [&] { return train(argc, argv); });
//   }
//
// The other functions are for a program that embeds another language, as the Python package does.
// They tell sherd how that program's users see errors, when its threads should stop waiting, and
// that it was forked. Their settings belong to the process; set the first two before any model is
// sharded.
//
// Thread rule: run_main() on the main thread, the others on any.
#pragma once

#include <functional>
#include <string>
#include <sherd/base/error.h>

namespace sherd {

// Returns what `body` returns. If `body` throws, prints "PROGRAM: MESSAGE" once, where PROGRAM is
// the last part of argv[0], and returns 2 after an Error with kInvalidArgument, which the same
// command line would cause again, or 1 after any other exception. Makes stdout line-buffered, also
// in a pipe. Ignores SIGXFSZ, so that a file that reaches a limit (ulimit -f) is an error of whoever
// writes it and does not kill the program. If stdin, stdout or stderr is closed, opens /dev/null for
// reading in its place, so that no socket takes its number and writing fails. Throws nothing.
int run_main(int argc, char** argv, const std::function<int()>& body);

// The message of an exception without the C++ stack that LibTorch appends to its own messages.
std::string without_backtrace(const std::string& message);

// Sets a function that is called where an Error is about to leave an operator or a backward hook
// and reach code that is not sherd's. It may throw something else instead; if it returns, the Error
// is thrown. It is called on any thread, while no lock of sherd is held. Null: none.
using ErrorTranslator = void (*)(const Error& error);
void set_error_translator(ErrorTranslator translator);

// Sets a function that each thread that waits for other ranks calls about twenty times a second. It
// returns whether this thread should stop waiting, for instance after Ctrl-C. The wait then fails
// with kAborted, as does the model's handle, and the other ranks learn that this one has given up.
// Locks of sherd are held during the call, so it must not call sherd. Null: none.
using InterruptCheck = bool (*)();
void set_interrupt_check(InterruptCheck check);
// Whether this thread is running the check. Using a parameter of a model there is an error.
bool in_interrupt_check();

// To be called in the child of a fork, which has neither sherd's threads nor its ranks. From then
// on, every use of a sharded or replicated parameter in that process is an error instead of an
// endless wait. This cannot be undone.
void forbid_after_fork();

}  // namespace sherd
