// SPDX-License-Identifier: Apache-2.0
//
// Ring is one rank's part in the all-reduce of its replica with the others: out
// of place, over TCP and, within a host, through memory that neighbours read where
// it lies; under one epoch's members at a time, which change without
// a new process. Buckets that are given stay until they are forgotten, so that a
// reduction that failed is repeated under the next epoch by begin() alone. One
// thread of its own moves the bytes, and always reads, so that a rank that is
// busy computing never looks dead. docs/design/ring_reduce.md has the algorithm
// and the conversation. Thread rule: any thread, also events; but who calls
// stop() or forget() holds no lock that an event waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "ft/protocol/identity.h"
#include "ft/ring/ring_types.h"

namespace sherd::ft {

// Called from the ring's thread, in the order in which things happened. What one
// throws is logged.
struct RingEvents {
  // Both neighbours of the epoch are connected.
  std::function<void(Epoch)> joined;
  // Every `out` has the weighted mean; equal digests are equal bits.
  std::function<void(Attempt, std::uint64_t digest)> reduced;
  // The epoch is over here: nothing given is touched, the values of `out` are
  // undefined unless reduced() came before. At most once for an epoch; not for
  // one that stop(), begin() or join() ended here.
  std::function<void(const RingFailure&)> failed;
};

class Ring {
 public:
  // Listens. Throws Error when it cannot, or for options that make no sense.
  Ring(RingOptions options, RingEvents events);
  // Ends what is under way, without waiting for anybody.
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  std::uint16_t port() const;

  // Before the first join(): what strangers do not know, and how many floats
  // each bucket has; both the same at all members. REQUIRES: run is not 0.
  void set_run(std::uint64_t run);
  void set_layout(std::vector<std::int64_t> elements);

  // Connects to the neighbours, in the background, while an older epoch may still
  // reduce. There is room for the oldest epoch and the newest one: one between
  // them is given up. REQUIRES: this rank is a member; later than all before.
  void join(RingMembership epoch);

  // Begins to reduce, and ends older epochs. weights[i] is of member i; a member
  // of weight 0 brings zeros, whatever it has given. REQUIRES: the epoch was
  // joined, else it fails; weights for all members, finite, none negative.
  void begin(const Attempt& attempt, std::vector<double> weights);

  // This rank's part of a bucket: `in` stays as it is and `out` is the ring's,
  // also after reduced(), until forget(): neighbours on this host may still read
  // both. Null `in` stands for zeros. In any order, before or after
  // begin(); they are reduced in the layout's order. REQUIRES: not given yet.
  void give(int bucket, const float* in, float* out);

  // Ends the epoch here and tells its neighbours so. When it returns, nothing
  // given is touched and no event of the epoch begins any more. An unknown epoch
  // is none.
  void stop(const Epoch& epoch);

  // The step is decided: what was given is the caller's again. A reduction under
  // way fails.
  void forget();

  RingCounters counters() const;
  RingProgress progress() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
