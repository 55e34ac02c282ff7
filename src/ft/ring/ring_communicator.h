// SPDX-License-Identifier: Apache-2.0
//
// RingCommunicator is one epoch's communicator at one member: the connections to the members it
// exchanges data with, and the all-reduces over them. The first fault aborts it, and its
// connections end with it. docs/design/ring_reduce.md says how members end an epoch. Thread rule:
// one thread.
#pragma once

#include <poll.h>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "base/clock.h"
#include "base/status.h"
#include "ft/protocol/tasks.h"
#include "ft/ring/frame.h"
#include "ft/ring/framed_socket.h"
#include "ft/ring/graceful_close.h"
#include "ft/ring/peer_link.h"
#include "ft/ring/reduce_schedule.h"
#include "ft/ring/ring_all_reduce.h"
#include "ft/ring/ring_types.h"
#include "ft/ring/shared_floats.h"
#include "net/tcp_socket.h"

namespace sherd::ft::ring {

// What all communicators of a rank share; it must outlive them.
struct RingContext {
  const RingOptions options;
  std::uint64_t run = 0;
  RingKey key{};
  std::vector<RingAllReduce::Bucket> buckets =
      std::vector<RingAllReduce::Bucket>(options.elements.size());
  std::int64_t last_step = -1;  // The step that the last attempt began.
  RingCounters counters{};
  GracefulClose closing{};
};

class RingCommunicator {
 public:
  struct Route {
    RingMembership epoch;
    int position = 0;  // This member's.
    // The addresses of the members that it connects to, indexed as in the schedule.
    std::vector<Result<net::SocketAddress>> receivers;
  };

  RingCommunicator(RingContext& context, Route route, Instant now);

  const Epoch& epoch() const { return route_.epoch.epoch; }
  // Returns true once, when all peers are connected.
  bool take_joined() {
    return joined_ && !std::exchange(joined_reported_, true);
  }

  // ---- connections of senders ----
  // Why the connection does not come from a sender; empty if it does. The caller goes on with
  // accept() or end().
  std::string identity_mismatch(const Handshake& handshake) const;
  // The differences in configuration, naming both sides; empty if there are none.
  std::string configuration_mismatch(const Handshake& handshake) const;
  bool is_connected(ReplicaId sender) const;
  // Opens the sender's memory, if it is on this host and both sides share theirs. REQUIRES: no
  // mismatch, and the sender is not connected.
  void accept(FramedSocket socket, const Handshake& handshake);

  // ---- reductions ----
  void begin(const ReduceTask& task);
  bool begun() const { return all_reduce_->begun(); }
  struct Reduced {
    Attempt attempt;
    std::uint64_t digest = 0;
  };
  std::optional<Reduced> take_reduced();
  RingProgress progress() const;

  // ---- running ----
  // Moves about one chunk on each connection; returns false if nothing could be moved.
  bool advance(Instant now);
  void polls(std::vector<pollfd>& list) const;
  // When advance() will have something to do even if no socket is ready.
  std::optional<Instant> next_instant() const;

  // ---- the end ----
  // Aborts the epoch and tells its peers. Given memory is no longer touched.
  void end(RingFault fault, ReplicaId accused, std::string reason);
  bool ended() const { return ended_; }
  const RingEnding& ending() const { return ending_; }  // REQUIRES: ended().

 private:
  const RingMember& member(const PeerLink& link) const;
  ReplicaId replica_of(const PeerLink& link) const {
    return member(link).replica;
  }
  PeerLink& sender(int index);
  const PeerLink& sender(int index) const;
  const PeerLink* sender_of(ReplicaId replica) const;
  const Result<net::SocketAddress>& address_of(const PeerLink& link) const;
  bool receivers_answer() const;
  Handshake own_handshake() const;

  Instant deadline() const;
  bool dial(Instant now);
  bool dial(PeerLink& link, Instant now);
  bool dialled(PeerLink& link, Instant now);
  void dial_again(PeerLink& link, Instant now, const std::string& problem);
  void end_at_deadline();
  void connected(PeerLink& link);
  bool read(PeerLink& link);
  bool read_large_shared_frame(const PeerLink& link) const;
  bool has_all_from(const PeerLink& link) const;
  void read_header(PeerLink& link);
  void read_frame(PeerLink& link);
  void read_data_header(PeerLink& link);
  void on_data(PeerLink& link);
  void end_late(int sender);
  void read_challenge(PeerLink& link);
  void read_answer(PeerLink& link);
  void on_connection_lost(PeerLink& link, const Status& problem);
  void on_peer_ending(PeerLink& link, const RingEnding& ending);
  bool send();
  bool has_sent_all() const;
  std::vector<RingLink> link_frames() const;
  std::vector<LinkSpeed> link_speeds() const;
  void finish();
  void take_sum();
  void end(RingEnding ending);

  RingContext& context_;
  const Route route_;
  const ReduceSchedule schedule_;
  std::vector<PeerLink>
      links_;              // Receivers first, each in the schedule's order.
  Instant deadline_;       // For connecting all of them.
  bool suspects_ = false;  // Some were not connected at the first deadline.
  std::optional<Instant> late_until_;  // Set if a sum was not read in time.
  bool joined_ = false;
  bool joined_reported_ = false;
  Instant now_;
  // Used by reductions:
  std::optional<RingAllReduce> all_reduce_;
  RingAllReduce::Receivers receivers_;
  bool again_ = false;
  std::int64_t finished_step_ = -1;
  std::optional<Reduced> reduced_;
  // Set if a peer is ending after it has done its part of the current reduction.
  std::optional<RingEnding> after_reduction_;
  bool losing_ = false;
  bool ended_ = false;
  RingEnding ending_;
};

}  // namespace sherd::ft::ring
