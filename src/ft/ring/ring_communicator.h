// SPDX-License-Identifier: Apache-2.0
//
// RingCommunicator is one epoch's communicator at one member: the connections to its two neighbours
// and the all-reduces on them. The first fault aborts it, and its connections end with it.
// docs/design/ring_reduce.md says how two members end an epoch. Thread rule: one thread.
#pragma once

#include <poll.h>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "base/backoff.h"
#include "base/clock.h"
#include "ft/ring/frame.h"
#include "ft/ring/framed_socket.h"
#include "ft/ring/graceful_close.h"
#include "ft/ring/ring_all_reduce.h"
#include "ft/ring/ring_schedule.h"
#include "ft/ring/ring_types.h"
#include "ft/ring/shared_floats.h"
#include "ft/ring/socket.h"

namespace sherd::ft::ring {

// What all communicators of a rank share; it outlives them.
struct RingContext {
  explicit RingContext(RingOptions given) : options(std::move(given)) {}

  const RingOptions options;
  std::uint64_t run = 0;
  RingKey key;
  std::vector<std::int64_t> elements;
  std::vector<Bucket> buckets;
  RingCounters counters;
  GracefulClose closing;
};

// An epoch, and the next member's address.
struct Route {
  RingMembership epoch;
  int position = 0;
  SocketAddress next;
  std::string problem;  // Why there is no address.
};

struct WeightedAttempt {
  Attempt attempt;
  std::vector<double> weights;  // By member.
  bool again = false;           // The step had an attempt before.
};

class RingCommunicator {
 public:
  RingCommunicator(RingContext& context, Route route, Instant now);

  const Epoch& epoch() const { return route_.epoch.epoch; }
  // True once, when both neighbours are connected.
  bool take_joined() {
    return joined_ && !std::exchange(joined_reported_, true);
  }

  // ---- the previous member's connection ----
  // Why the connection is not the previous member's; empty: it is. The caller goes on with
  // accept_previous() or end().
  std::string identity_mismatch(const Handshake& handshake) const;
  // The differences in configuration, naming both sides; empty: none.
  std::string configuration_mismatch(const Handshake& handshake) const;
  bool has_previous() const { return prev_.has_value(); }
  // Opens the neighbour's memory, if it is on this host and both sides share theirs.
  void accept_previous(FramedSocket link, const Handshake& handshake);

  // ---- reductions ----
  void begin(const WeightedAttempt& weighted);
  bool begun() const { return all_reduce_->begun(); }
  struct Reduced {
    Attempt attempt;
    std::uint64_t digest = 0;
  };
  std::optional<Reduced> take_reduced();
  RingProgress progress() const;

  // ---- running ----
  // Moves about one chunk each way; false: nothing could be moved.
  bool advance(Instant now);
  void polls(std::vector<pollfd>& list) const;
  // When advance() has something to do although no socket is ready.
  std::optional<Instant> next_instant() const;

  // ---- the end ----
  // Aborts the epoch and tells the neighbours. Given memory is no longer touched.
  void end(RingFault fault, ReplicaId accused, std::string reason);
  bool ended() const { return ended_; }
  const Ending& ending() const { return ending_; }  // REQUIRES: ended().

 private:
  enum class Side { kPrev, kNext };
  const RingMember& member(int distance) const;
  std::optional<FramedSocket>& link(Side side);
  ReplicaId replica_of(Side side) const;
  Handshake own_handshake() const;

  Instant deadline() const;
  bool dial(Instant now);
  bool dialled(Instant now);
  void dial_again(Instant now, const std::string& problem);
  bool read(Side side);
  bool read_large_shared_frame(Side side);
  void read_header(Side side);
  void read_frame(Side side);
  void read_data_header();
  void read_shared_data_header();
  void on_data();
  void end_late();
  void read_challenge();
  void read_answer();
  void on_connection_lost(Side side, Status problem);
  void on_peer_ending(Side side, const Ending& ending);
  bool send();
  void finish();
  void take_sum();
  void end(Ending ending);

  RingContext& context_;
  const Route route_;
  const RingSchedule schedule_;
  // Connecting.
  Descriptor dialling_;
  Instant dial_at_;
  Instant deadline_;
  std::optional<Instant> late_until_;  // A sum was not read in time.
  Backoff dial_backoff_{
      {.first = std::chrono::milliseconds(10),
       .longest = std::chrono::milliseconds(200)}};
  std::string dial_problem_;
  std::uint64_t challenge_ =
      0;  // For the next member's proof; 0: it has not sent its own yet.
  bool greeted_ = false;  // The next member has answered.
  bool joined_ = false;
  bool joined_reported_ = false;
  Instant now_;
  // Reset when the connection has ended in order.
  std::optional<FramedSocket> prev_;
  std::optional<FramedSocket> next_;
  std::optional<PeerFloats> prev_memory_;  // Read in place.
  bool next_reads_ = false;                // What lies in this member's.
  // Reducing.
  std::optional<RingAllReduce> all_reduce_;
  bool again_ = false;
  std::int64_t finished_step_ = -1;
  std::optional<Reduced> reduced_;
  std::uint64_t frames_in_ = 0;  // Data frames.
  std::uint64_t frames_out_ = 0;
  // A neighbour is ending, but has done its part of the reduction under way.
  std::optional<Ending> after_reduction_;
  bool losing_ = false;
  bool ended_ = false;
  Ending ending_;
};

}  // namespace sherd::ft::ring
