// SPDX-License-Identifier: Apache-2.0
//
// ReplicaAgent runs one rank's RankAgent in a thread of its own, which goes on while the program
// computes, and connects it with the Leader: in rank 0 that is another thread, and the other ranks
// connect to rank 0. Thread rule: the training thread.
#pragma once

#include <memory>
#include <string>
#include <vector>
#include "ft/replica/agent_options.h"
#include "ft/replica/rank_agent.h"

namespace sherd::ft {

class ReplicaAgent {
 public:
  // Listens. Throws Error if it cannot.
  explicit ReplicaAgent(ReplicaAgentOptions options);
  ReplicaAgent(const ReplicaAgent&) = delete;
  ReplicaAgent& operator=(const ReplicaAgent&) = delete;
  // Ends the threads and all connections.
  ~ReplicaAgent();

  // The address of this rank, as text for start() of all ranks.
  std::string address() const;
  // `addresses` has each rank's address(), by rank. May be called only once. Throws Error for a
  // text that is no address.
  void start(const std::vector<std::string>& addresses);

  // The program's interface to this rank, once start() has returned.
  RankAgent& rank();
  // The replica leaves after the current step, no matter which of its ranks calls this: next() will
  // tell all of them.
  void leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
