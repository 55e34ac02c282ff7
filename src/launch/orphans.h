// SPDX-License-Identifier: Apache-2.0
//
// Orphans are processes that a rank has started and left behind: the children of a rank that was
// killed, or that left its process group. This process adopts them, as a subreaper, and kills those
// whose rank has ended, since they hold its connections, files and memory. A process is known as a
// rank's by its mark, a variable in its environment; one that has cleared that is left alone. Thread
// rule: one thread, the only one of the process.
#pragma once

#include <sys/types.h>
#include <chrono>
#include <set>
#include <string>
#include "base/clock.h"

namespace sherd::launch {

inline constexpr const char* kStartVariable = "SHERD_START";
// How long orphans are looked for again when some are left. A mark can be unreadable for ever where
// a program runs as another user.
inline constexpr Duration kOrphansTimeout = std::chrono::seconds(2);

class Orphans {
 public:
  // From now until destruction orphans come to this process.
  Orphans();
  ~Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  // "SHERD_START=...", for the environment of a process that is started; each is another.
  std::string next_mark();

  // Reaps the orphans that have ended and kills those with a mark that is none of `living`. Returns how
  // many of these are not gone yet, and with them those whose mark nobody can tell yet, because they
  // end or begin a program. `own`: children of this process that are no orphans.
  int sweep(
      const std::set<pid_t>& own, const std::set<std::string>& living) const;
  // Kills all that have a mark, and their children, and waits until they are gone, for
  // kOrphansTimeout at most.
  void end_all(const std::set<pid_t>& own) const;

 private:
  int adopted_before_ = 0;  // Whether it was a subreaper.
  const std::string
      own_mark_;  // Where this process is a rank of another launcher.
  unsigned marks_ = 0;
};

}  // namespace sherd::launch
