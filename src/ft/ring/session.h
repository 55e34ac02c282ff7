// SPDX-License-Identifier: Apache-2.0
//
// Session is one epoch at one member: it connects to the next member, is given
// the connection of the previous one, and carries reductions until the first
// thing goes wrong or it is told to end. Its connections end with it. How two
// members end an epoch is in docs/design/ring_reduce.md. Thread rule: one thread.
#pragma once

#include <poll.h>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "base/clock.h"
#include "ft/ring/farewell.h"
#include "ft/ring/frame.h"
#include "ft/ring/link.h"
#include "ft/ring/reduction.h"
#include "ft/ring/ring_types.h"
#include "ft/ring/schedule.h"
#include "ft/ring/shared_floats.h"
#include "ft/ring/socket.h"

namespace sherd::ft::ring {

// What all sessions of a rank have in common; outlives them.
struct SessionContext {
  explicit SessionContext(RingOptions given) : options(std::move(given)) {}

  const RingOptions options;
  std::uint64_t run = 0;
  std::vector<std::int64_t> elements;
  std::vector<Bucket> buckets;
  RingCounters counters;
  Farewells farewells;
};

// An epoch, and how its next member is reached.
struct Route {
  RingEpoch epoch;
  int position = 0;
  SocketAddress next;
  std::string problem;  // There is no address.
};

struct Weighed {
  Attempt attempt;
  std::vector<double> weights;  // Of the members.
  bool again = false;           // The step had an attempt before.
};

class Session {
 public:
  Session(SessionContext& context, Route route, Instant now);

  const Epoch& epoch() const { return route_.epoch.epoch; }
  // True once: both neighbours are connected.
  bool take_joined() { return joined_ && !std::exchange(told_joined_, true); }

  // ---- the previous member's connection ----
  // Why it is not from there; empty: it is. Then adopt() or end() is next.
  std::string stranger(const Hello& hello) const;
  // What it does not agree about, naming both sides; empty: nothing.
  std::string disagreement(const Hello& hello) const;
  bool has_previous() const { return prev_.has_value(); }
  // Reads its memory, if that is of this host and both sides share theirs.
  void adopt(Link link, const Hello& hello);

  // ---- reductions ----
  void begin(const Weighed& weighed);
  bool begun() const { return reduction_->begun(); }
  struct Reduced {
    Attempt attempt;
    std::uint64_t digest = 0;
  };
  std::optional<Reduced> take_reduced();
  RingProgress progress() const;

  // ---- running ----
  // Moves what can be moved, about one chunk each way; false: nothing could.
  bool advance(Instant now);
  void polls(std::vector<pollfd>& list) const;
  // When advance() has something to do without a socket being ready.
  std::optional<Instant> next_instant() const;

  // ---- the end ----
  // By a fault; the neighbours hear of it. Nothing given is touched any more.
  void end(RingFault fault, ReplicaId accused, std::string reason);
  bool ended() const { return ended_; }
  const Ending& ending() const { return ending_; }  // REQUIRES: ended().

 private:
  enum class Side { kPrev, kNext };
  const RingMember& member(int distance) const;
  std::optional<Link>& link(Side side);
  ReplicaId replica_of(Side side) const;
  Hello own_hello() const;
  // Between the members, or with who is asked.
  std::string differences(const Hello& hello) const;

  bool dial(Instant now);
  bool dialled(Instant now);
  void dial_again(Instant now, const std::string& problem);
  bool read(Side side);
  bool shows_much(Side side);
  void read_header(Side side);
  void read_frame(Side side);
  void read_data_header();
  void read_shown_header();
  void read_part();
  void end_late();
  void read_answer();
  void lose(Side side, Status problem);
  void hear(Side side, const Ending& ending);
  bool send();
  void finish();
  void end(Ending ending);

  SessionContext& context_;
  const Route route_;
  const Schedule schedule_;
  // Connecting.
  Descriptor dialling_;
  Instant dial_at_;
  Instant deadline_;
  std::optional<Instant> late_until_;  // A sum was not read in time.
  Duration pause_ = std::chrono::milliseconds(10);
  std::string dial_problem_;
  bool greeted_ = false;  // The next member has answered.
  bool joined_ = false;
  bool told_joined_ = false;
  Instant now_;
  // A link that has ended in order is gone.
  std::optional<Link> prev_;
  std::optional<Link> next_;
  std::optional<PeerFloats> prev_memory_;  // Read where it lies.
  bool next_reads_ = false;                // What lies in this member's.
  // Reducing.
  std::optional<Reduction> reduction_;
  bool again_ = false;
  std::int64_t finished_step_ = -1;
  std::optional<Reduced> reduced_;
  std::uint64_t frames_in_ = 0;  // Of data.
  std::uint64_t frames_out_ = 0;
  // A neighbour ends, but has done its part of the reduction under way.
  std::optional<Ending> after_reduction_;
  bool losing_ = false;
  bool ended_ = false;
  Ending ending_;
};

}  // namespace sherd::ft::ring
