// SPDX-License-Identifier: Apache-2.0
//
// Ring is the all-reduce of gradient buckets between the replicas, at one shard rank: out of place,
// over TCP and, within a host, through shared memory that peers read in place. Its members form a
// ring, or a double binary tree if there are many (ft/protocol/reduce_shape.h). The members of an
// epoch reduce together, and members can change without a new process. Buckets stay given until
// forget(), so that a failed reduction is repeated in the next epoch by calling only begin(). The
// ring's own thread moves the bytes and always reads, so that a rank that is busy computing never
// looks dead. docs/design/ring_reduce.md has the algorithm and the protocol. Thread rule: any
// thread, also from events; but a caller of stop() or forget() must hold no lock that an event
// waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>
#include "ft/protocol/identity.h"
#include "ft/ring/ring_types.h"

namespace sherd::ft {

namespace ring {
class RingLoop;
}

// Called from the ring's thread, in the order in which things happened. Exceptions are logged.
struct RingEvents {
  // All peers of the epoch are connected.
  std::function<void(Epoch)> joined;
  // Every `out` holds the weighted mean; equal digests mean equal bits.
  std::function<void(Attempt, std::uint64_t digest)> reduced;
  // The epoch has ended at this member: given memory is no longer touched, and the values of `out`
  // are undefined unless reduced() came before. Called at most once for an epoch, and not for one
  // that stop(), begin() or join() ended here.
  std::function<void(const Epoch&, const RingEnding&)> failed;
};

class Ring {
 public:
  // Listens. Throws Error if it cannot, or for invalid options.
  Ring(RingOptions options, RingEvents events);
  // Ends everything under way without waiting for peers.
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  std::uint16_t port() const;

  // Must be called before the first join(), with the same values at all members: the run number
  // keeps unknown clients out, and the layout is the number of floats in each bucket. `key` is this
  // member's key, which the other members must prove to know. REQUIRES: run is not 0.
  void set_run(std::uint64_t run, const RingKey& key = {});
  void set_layout(std::vector<std::int64_t> elements);

  // Connects to the peers in the background, while an older epoch may still reduce. Keeps the
  // oldest and the newest epoch and drops those in between. REQUIRES: this rank is a member; the
  // epoch is later than all before.
  void join(RingMembership epoch);

  // Begins to reduce, and ends older epochs. weights[i] belongs to member i; a member of weight 0
  // contributes zeros, whatever it has given. If the epoch was not joined, the call fails.
  // REQUIRES: finite weights for all members, none negative.
  void begin(const Attempt& attempt, std::vector<double> weights);

  // Gives this rank's part of a bucket, before or after begin() and in any order; buckets are
  // reduced in the layout's order. Until forget(), `in` must stay unchanged and `out` belongs to
  // the ring, because peers on this host may still read both, even after reduced(). A null `in`
  // stands for zeros. REQUIRES: the bucket is not given yet.
  void give(int bucket, const float* in, float* out);

  // Ends the epoch at this member and tells its peers. When it returns, given memory is no longer
  // touched and no event of the epoch begins. Does nothing for an unknown epoch.
  void stop(const Epoch& epoch);

  // Takes back all given buckets once the step is decided. A reduction under way fails.
  void forget();

  RingCounters counters() const;
  RingProgress progress() const;

 private:
  // Arguments are checked on the caller's thread, against a copy of what was set before; the loop
  // does the rest.
  const RingOptions options_;
  std::mutex mu_;
  // Guarded by mu_, which also keeps calls in one order.
  std::uint64_t run_ = 0;
  std::vector<std::int64_t> elements_;
  std::vector<bool> given_;
  std::optional<Epoch> newest_;
  std::map<Epoch, std::size_t> members_;  // Epochs that may be begun.

  const std::unique_ptr<ring::RingLoop> loop_;
};

}  // namespace sherd::ft
