// SPDX-License-Identifier: Apache-2.0
//
// ReplicaAgent runs the agent of one rank in a thread of its own, which goes on
// while the program computes: its RankAgent, at rank 0 the Leader, and the
// connections between rank 0 and the others. Thread rule: the one that trains.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>
#include "ft/agent/leader.h"
#include "ft/agent/rank_agent.h"

namespace sherd::ft {

struct ReplicaAgentOptions {
  RankAgentOptions rank;
  int ranks = 1;  // Of the replica.
  // Of rank 0 alone.
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
  // Ends the thread, and so all connections.
  ~ReplicaAgent();

  // Where this rank is reached, for start() of all ranks.
  std::string address() const;
  // Every rank's address(), by rank. Call once. Throws Error for what is none.
  void start(const std::vector<std::string>& addresses);

  // ---- when it has started ----

  std::optional<ComputeCommand> next(const RankProgram& program);
  float* gradients();
  bool finish(const ComputeCommand& task, const RankProgram& program);
  void end(const RankProgram& program);
  // The replica leaves after the step it is in: next() will say so.
  void leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
