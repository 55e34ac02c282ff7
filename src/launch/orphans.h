// SPDX-License-Identifier: Apache-2.0
//
// Orphans are processes that a rank has started and left behind: the children of a rank that was
// killed, or that left its process group. This process adopts them, as a subreaper, and kills those
// whose rank has ended, since they hold its connections, files and memory. A process is recognised
// as a rank's by its mark, a variable in its environment; a process that has removed the variable
// is left alone. Thread rule: one thread, the only one of the process.
#pragma once

#include <sys/types.h>
#include <chrono>
#include <set>
#include <string>
#include "base/clock.h"

namespace sherd::launch {

inline constexpr const char* kStartVariable = "SHERD_START";
// How long to keep looking for orphans when some are left. A mark may stay unreadable forever if a
// program runs as another user.
inline constexpr Duration kOrphansTimeout = std::chrono::seconds(2);

class Orphans {
 public:
  // From construction until destruction orphans become children of this process.
  Orphans();
  ~Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  // "SHERD_START=...", for the environment of a new process; it is different for each.
  std::string next_mark();

  // Reaps the orphans that have ended and kills those whose mark is not in `living`. Returns how
  // many of these are still there, plus those whose mark cannot be read yet because they are ending
  // or starting a program. `own` are children of this process that are no orphans.
  int sweep(
      const std::set<pid_t>& own, const std::set<std::string>& living) const;
  // Kills all processes that have a mark, and their children, and waits until they are gone, for at
  // most kOrphansTimeout.
  void end_all(const std::set<pid_t>& own) const;

 private:
  int adopted_before_ = 0;  // Whether this process was a subreaper before.
  // Set if this process is a rank of another launcher.
  const std::string own_mark_;
  unsigned marks_ = 0;
};

}  // namespace sherd::launch
