// SPDX-License-Identifier: Apache-2.0
//
// A process that is one rank of a replica: a ToyModel over a real ReplicaAgent. It reports what it
// does to the test over a socket, one message each, and stops at the points that the test has armed
// until it is told what to do there. Thread rule: messages from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include "base/clock.h"
#include "ft/protocol/identity.h"
#include "ft/shared_number.h"
#include "net/host_address.h"

namespace sherd::ft::test {

struct ToyRankOptions {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  int rank = 0;
  int ranks = 1;
  const SharedNumber* steps = nullptr;
  std::chrono::microseconds step_time{20000};
  std::vector<std::int64_t> buckets;
  std::uint64_t config = 5;
  std::uint64_t fetch_bytes_per_s_max = 0;
  std::uint64_t sums_bytes_max = std::uint64_t{1} << 30U;
  bool warms_up = false;
  int digest_every = 0;
  // Whether all replicas stop; otherwise they are left out.
  bool bad_gradients_stop = false;
  // Additional bytes of a state that sums do not have.
  std::size_t ballast_bytes = 0;
  net::HostAddress coordinator;
  std::string secret_file{};  // Empty if there is none.
  // The points and steps at which it stops and asks; step -1 means each step.
  std::set<std::pair<std::string, std::int64_t>> armed;
  std::function<std::uint16_t(ReplicaId to, std::uint16_t port)> route;
};

// What a rank reports.
struct TraceEvent {
  enum class Kind {
    kAddress,  // `text` is its address.
    kHolds,    // It holds a state, with the hash of its real content.
    kComputes,
    kReached,  // It has reached a point, and waits there.
    kFailed,   // It threw this.
    kDone,
  };
  Kind kind = Kind::kDone;
  Instant at{0};
  StateId state;
  std::uint64_t hash = 0;
  std::int64_t samples = 0;
  int descriptors = 0;
  int threads = 0;
  std::int64_t resident_bytes = 0;
  std::string text;
};

std::string bytes_of(const TraceEvent& event);
TraceEvent trace_event_of(const std::string& bytes);

// The limit for one message.
inline constexpr std::size_t kTraceEventBytesMax = 8192;

// The state with which all replicas begin.
StateId first_state();

// Runs the process; `socket` is a SOCK_SEQPACKET one. First it reports its address and receives
// those of all ranks, one per line.
int run_toy_rank(const ToyRankOptions& options, int socket);

}  // namespace sherd::ft::test
