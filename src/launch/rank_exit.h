// SPDX-License-Identifier: Apache-2.0
//
// RankExit says how a rank ended and what that means for the launcher's own exit
// status, by the convention of shells. Thread rule: a value.
#pragma once

#include <string>

namespace sherd::launch {

struct RankExit {
  int rank = 0;
  int exit_code = 0;
  int signal = 0;  // Not 0: killed by it, and exit_code means nothing.

  bool failed() const { return signal != 0 || exit_code != 0; }
  // 128 + signal for a rank that was killed.
  int status() const { return signal != 0 ? 128 + signal : exit_code; }
};

// "signal 9 (SIGKILL)".
std::string describe_signal(int signal);

// "rank 2 was killed by signal 9 (SIGKILL)".
std::string describe(const RankExit& end);

// What the user may not think of, to be added to that; often nothing.
std::string hint_of(const RankExit& end);

}  // namespace sherd::launch
