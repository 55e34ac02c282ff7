// SPDX-License-Identifier: Apache-2.0
//
// ReplicaAgent runs the agent of one rank in a thread of its own, which goes on
// while the program computes: its RankAgent, and the connection to rank 0, which
// has the Leader, in another thread. Thread rule: the one that trains.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>
#include "base/clock.h"
#include "ft/replica/leader.h"
#include "ft/replica/rank_agent.h"

namespace sherd::ft {

struct ReplicaAgentOptions {
  RankAgentOptions rank;
  int ranks = 1;  // Of the replica.
  // Behaviour. Until all of them have found each other.
  Duration siblings_timeout = std::chrono::seconds(60);
  // Of rank 0 alone.
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
  // Ends the threads, and so all connections.
  ~ReplicaAgent();

  // Where this rank is reached, for start() of all ranks.
  std::string address() const;
  // Every rank's address(), by rank. Call once. Throws Error for what is none.
  void start(const std::vector<std::string>& addresses);

  // ---- when it has started ----

  std::optional<ComputeCommand> next(const TrainingCallbacks& program);
  float* gradients();
  std::span<const float> gradients(int bucket) const;
  void give(const ComputeCommand& task, int bucket);
  bool finish(const ComputeCommand& task, const TrainingCallbacks& program);
  bool refuse(
      const ComputeCommand& task,
      const GradientFault& fault,
      const TrainingCallbacks& program);
  void end(const TrainingCallbacks& program);
  // The replica leaves after the step it is in: next() will say so.
  void leave();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
