// SPDX-License-Identifier: Apache-2.0
//
// A process that is one rank of a replica: a ToyModel over a real ReplicaAgent.
// It tells the test what it does over a socket, one message each, and stops at
// the points that the test has armed until it is told what to do there. Thread
// rule: messages from any thread.
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
  bool bad_gradients_stop = false;  // All; else they are left out.
  // That a state has besides, which sums have not.
  std::size_t ballast_bytes = 0;
  net::HostAddress coordinator;
  std::string secret_file{};  // Empty: none.
  // Where it stops and asks: points, and steps at which; step -1: at each.
  std::set<std::pair<std::string, std::int64_t>> armed;
  std::function<std::uint16_t(ReplicaId to, std::uint16_t port)> route;
};

// What a rank tells.
struct TraceEvent {
  enum class Kind {
    kAddress,  // Its text.
    kHolds,    // A state, with the hash of what it is.
    kComputes,
    kReached,  // A point, and waits there.
    kFailed,   // What it threw.
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

// Of a message: at most so long.
inline constexpr std::size_t kTraceEventBytesMax = 8192;

// That all begin with.
StateId first_state();

// The life of the process; `socket` is a SOCK_SEQPACKET one. First it tells its
// address and hears those of all ranks, a line each.
int run_toy_rank(const ToyRankOptions& options, int socket);

}  // namespace sherd::ft::test
