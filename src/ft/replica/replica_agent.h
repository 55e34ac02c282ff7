// SPDX-License-Identifier: Apache-2.0
//
// ReplicaAgent runs one rank's RankAgent in a thread of its own, which goes on while the program
// computes, and connects it with the Leader: rank 0 has that in another thread, the other ranks dial
// rank 0. Thread rule: the one that trains.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>
#include "base/clock.h"
#include "ft/replica/leader.h"
#include "ft/replica/rank_agent.h"

namespace sherd::ft {

struct ReplicaAgentOptions {
  RankAgentOptions rank;
  int ranks = 1;  // Of the replica.
  // All ranks must have connected to rank 0 by then.
  Duration siblings_timeout = std::chrono::seconds(60);

  // ---- only rank 0 uses these ----

  bool warms_up = false;  // See LeaderOptions.
  net::HostAddress coordinator;
  std::uint64_t config = 0;
  StateId held;
};

class ReplicaAgent {
 public:
  // Listens. Throws Error when it cannot.
  explicit ReplicaAgent(ReplicaAgentOptions options);
  ReplicaAgent(const ReplicaAgent&) = delete;
  ReplicaAgent& operator=(const ReplicaAgent&) = delete;
  // Ends the threads and all connections.
  ~ReplicaAgent();

  // Where this rank is reached, as text for start() of all ranks.
  std::string address() const;
  // `addresses`: each rank's address(), by rank. Call once. Throws Error for a text that is none.
  void start(const std::vector<std::string>& addresses);

  // What the program does with this rank, once start() has returned.
  RankAgent& rank();
  // The replica leaves after the step it is in, whichever rank says so: next() will tell all.
  void leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
