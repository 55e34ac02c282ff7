// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_exit.h"

#include <csignal>
#include <cstring>
#include "base/check.h"

namespace sherd::launch {

std::string describe_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? str("signal ", signal)
                         : str("signal ", signal, " (SIG", name, ")");
}

std::string describe(const RankExit& end) {
  if (end.signal != 0) {
    return str(
        "rank ", end.rank, " was killed by ", describe_signal(end.signal));
  }
  return str("rank ", end.rank, " exited with code ", end.exit_code);
}

std::string hint_of(const RankExit& end) {
  return end.signal == SIGKILL
      ? "; the kernel sends it too, when memory runs out"
      : "";
}

}  // namespace sherd::launch
