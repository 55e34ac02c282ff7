// SPDX-License-Identifier: Apache-2.0
//
// LeaderThread runs the Leader and accepts the other ranks' connections, in a thread of rank 0 that
// does nothing else. Reports to the coordinator therefore go out in time whatever keeps the ranks'
// agents busy: digests, snapshots, name look-ups. Thread rule: any, once it is started.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "base/clock.h"
#include "ft/replica/leader.h"
#include "ft/replica/rank_messages.h"

namespace sherd::ft {

struct LeaderThreadOptions {
  LeaderOptions leader;  // Addresses come with start().
  std::string host;      // Where it listens for the other ranks.
  int ranks = 1;
  // All ranks must have connected by then.
  Duration siblings_timeout = std::chrono::seconds(60);
  // A rank that has connected must have sent its number by then.
  Duration hello_timeout = std::chrono::seconds(5);
};

class LeaderThread {
 public:
  // Calls `own`, in its thread, with each task for rank 0, among them a StopTask when the other ranks
  // do not come. Listens. Throws Error when it cannot.
  LeaderThread(
      LeaderThreadOptions options, std::function<void(const RankTask&)> own);
  // Ends the thread and all connections, as soon as ranks that were told to stop have received that,
  // after a second at most.
  ~LeaderThread();
  LeaderThread(const LeaderThread&) = delete;
  LeaderThread& operator=(const LeaderThread&) = delete;

  // The port where it listens for the other ranks; 0: there are none.
  std::uint16_t port() const;
  // `addresses`: by rank. Call once.
  void start(std::vector<RankAddress> addresses);

  // An event of rank 0.
  void tell(const RankEvent& event);
  void snapshot_wanted();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
