// SPDX-License-Identifier: Apache-2.0
//
// What signals ask of this rank of `sherd train`. The first SIGINT (Ctrl-C) asks for the same as
// SIGTERM, a checkpoint and the end; a second one ends the process at once, as it does without
// handlers. So does SIGHUP, which a terminal sends when it closes, unless it is ignored (nohup). One
// interrupt that the launcher passes on within a second of another sender's is not a second one.
// Thread rule: any thread.
#pragma once

namespace sherd::tools {

inline constexpr int kSaveRequest = 1;  // SIGUSR1 asks for a checkpoint.

// Call it first: SIGUSR1 would end a program that is still starting. What it asks for is kept.
void accept_save_requests();

// With `announces`, the first SIGINT is answered by a line on stderr.
void install_signal_handlers(bool announces);

// What was requested so far: 0 for nothing, kSaveRequest, or a larger number for the signal that asks
// for the end. Taking kSaveRequest clears it.
int take_signal_request();
// The number of the signal that asks for the end. REQUIRES: request > kSaveRequest.
constexpr int signal_of(int request) { return request - kSaveRequest; }

}  // namespace sherd::tools
