// SPDX-License-Identifier: Apache-2.0
//
// FaultStream is one direction of one connection through a FaultProxy: bytes that have been taken
// from the sender and wait for their time, and the faults at offsets. It reads and writes its two
// sockets but closes neither: its owner is told of a cut. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include "base/clock.h"
#include "support/fault_proxy.h"
#include "support/frame_repeater.h"

namespace sherd::test {

// What shall happen to the connection.
enum class Cut { kNone, kClose, kReset };

class FaultStream {
 public:
  FaultStream(int from, int to) : from_(from), to_(to) {}

  // Whether more may be read now.
  bool wants_input(const Faults& faults) const;
  // Whether it waits for room at the receiver.
  bool wants_room() const { return wants_room_; }
  // When there is something to forward; nullopt if nothing before the next event.
  std::optional<Instant> deadline(const Faults& faults) const;

  // Reads one buffer of what the sender has written.
  Cut take(const Faults& faults, Instant now, std::mt19937_64& random);
  // Writes what is due, up to the next offset at which something happens.
  Cut forward(const Faults& faults, Instant now);
  void room_came() { wants_room_ = false; }

  // Whether nothing more will come out of it.
  bool over() const { return ended_ || (swallows_ && input_over_); }
  // A fault at an offset has happened.
  bool struck() const { return struck_; }
  std::int64_t bytes_in() const { return in_; }
  std::int64_t bytes_out() const { return out_; }

 private:
  struct Piece {
    std::string bytes;  // Nullopt for the end of the stream.
    Instant due{0};
  };
  void add(std::string bytes, Instant due);
  Cut cut_reached(const Faults& faults);
  // How much may be written before the nearest of the offsets.
  std::size_t bytes_until_cut(const Faults& faults) const;
  // Returns false if it cannot go on now.
  bool write_front(const Faults& faults, Instant now);
  void swallow();
  void end();

  int from_;
  int to_;
  std::deque<Piece> pieces_;
  std::optional<FrameRepeater> repeater_;
  std::size_t queued_ = 0;
  std::int64_t in_ = 0;
  std::int64_t out_ = 0;
  Instant last_due_{0};
  Instant free_at_{0};  // According to the limit of bytes per second.
  bool input_over_ = false;
  bool swallows_ = false;  // Drops everything that comes from now on.
  bool wants_room_ = false;
  bool ended_ = false;
  bool struck_ = false;
  bool broken_ = false;  // The receiver is gone.
};

}  // namespace sherd::test
