// SPDX-License-Identifier: Apache-2.0
//
// The size of the messages and records of a simulated run: they are encoded as in the running
// system, where a connection is sent only what has changed. In a world, messages have no addresses
// and no progress of ranks; the size of these is added. Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <vector>
#include "ft/protocol/coordinator.h"
#include "ft/wire/report_stream.h"
#include "ft/wire/view_stream.h"

namespace sherd::sim {

struct Flow {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;

  void add(std::uint64_t size, std::uint64_t times) {
    messages += times;
    bytes += size * times;
  }
  void subtract(const Flow& earlier) {
    messages -= earlier.messages;
    bytes -= earlier.bytes;
  }
};

class Traffic {
 public:
  struct Totals {
    Flow reports;  // Except for heartbeats that repeat them.
    Flow views;
    Flow records;
    // The largest report, and a heartbeat and its answer, with their frames.
    std::uint64_t report_bytes_max = 0;
    std::uint64_t heartbeat_bytes = 0;
    std::uint64_t answer_bytes = 0;
  };

  explicit Traffic(int ranks_per_replica);

  // Counts what is sent `times` times.
  void report(const ft::Report& report, std::int64_t times);
  void view(const ft::SendView& sent, std::int64_t times);
  void record(const ft::Record& record, std::int64_t times);

  const Totals& totals() const { return totals_; }

 private:
  // One incarnation's connection to the coordinator.
  struct Connection {
    ft::Incarnation incarnation = 0;
    ft::ReportWriter reports;
    ft::ToldView told;
    std::uint64_t starts = 0;  // The starts whose addresses it has been sent.
  };
  Connection& connection(ft::ReplicaId replica, ft::Incarnation incarnation);

  // The addresses of one replica, sent once.
  std::uint64_t addresses_bytes_ = 0;
  // The progress of ranks, in the first report and in heartbeats.
  std::uint64_t ranks_bytes_ = 0;
  std::map<ft::ReplicaId, Connection> connections_;
  std::uint64_t starts_ = 0;  // The starts of replicas so far.
  ft::ViewWriter views_writer_;
  std::vector<ft::Member> members_;  // The members as of the last record.
  Totals totals_;
};

// What one leader and one of its ranks send each other in a step, and the size of a rank's heartbeat.
Flow rank_flow_of_step(int replicas);
std::uint64_t rank_heartbeat_bytes();

}  // namespace sherd::sim
