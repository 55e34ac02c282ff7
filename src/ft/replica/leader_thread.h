// SPDX-License-Identifier: Apache-2.0
//
// LeaderThread is what rank 0 has besides its own agent: the Leader, and the
// connections of the other ranks, in a thread that does nothing else. So reports
// go to the coordinator in time whatever the agents of the ranks work at: digests,
// snapshots, names that are looked up. How long each of these says nothing is told,
// too. Thread rule: any, once it is started.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "base/clock.h"
#include "ft/replica/commands.h"
#include "ft/replica/leader.h"

namespace sherd::ft {

struct LeaderThreadOptions {
  LeaderOptions leader;  // Addresses come with start().
  std::string host;      // Where the other ranks come to.
  int ranks = 1;
  // Until all of them have come.
  Duration siblings_timeout = std::chrono::seconds(60);
  // Until one that has come says which it is.
  Duration hello_timeout = std::chrono::seconds(5);
};

class LeaderThread {
 public:
  // `own` hears, from its thread, what rank 0 is told: a StopCommand, too, when
  // there is nobody to lead. Listens. Throws Error when it cannot.
  LeaderThread(
      LeaderThreadOptions options, std::function<void(const Command&)> own);
  // Ends the thread, and so all connections: at once, or as soon as those that
  // were told to stop have heard it (a second at most).
  ~LeaderThread();
  LeaderThread(const LeaderThread&) = delete;
  LeaderThread& operator=(const LeaderThread&) = delete;

  // Where the other ranks come to; 0: there are none.
  std::uint16_t port() const;
  // Call once. By rank.
  void start(std::vector<RankAddress> addresses);

  // From rank 0.
  void tell(const RankEvent& event);
  void snapshot_wanted();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
