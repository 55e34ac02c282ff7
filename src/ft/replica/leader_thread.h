// SPDX-License-Identifier: Apache-2.0
//
// LeaderThread runs the Leader and accepts the other ranks' connections, in a thread of rank 0 that
// does nothing else. Reports to the coordinator therefore leave in time no matter what keeps the
// ranks' agents busy: digests, snapshots, name look-ups. Thread rule: any thread, once it is
// started.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>
#include "ft/replica/agent_options.h"
#include "ft/replica/rank_messages.h"

namespace sherd::ft {

class LeaderThread {
 public:
  // Listens. Calls `own`, in its thread, with each task for rank 0; one of them is a StopTask if
  // the other ranks do not connect. Throws Error if it cannot listen.
  LeaderThread(
      ReplicaAgentOptions options, std::function<void(const RankTask&)> own);
  // Ends the thread and all connections as soon as the ranks that were told to stop have received
  // that, or after a second.
  ~LeaderThread();
  LeaderThread(const LeaderThread&) = delete;
  LeaderThread& operator=(const LeaderThread&) = delete;

  // The port where it listens for the other ranks; 0 if there are none.
  std::uint16_t port() const;
  // `addresses` are ordered by rank. May be called only once.
  void start(std::vector<RankAddress> addresses);

  // An event of rank 0.
  void tell(const RankEvent& event);
  void snapshot_wanted();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
