// SPDX-License-Identifier: Apache-2.0
//
// Ring is the all-reduce of gradient buckets between the replicas, at one shard rank: out of place,
// over TCP and, within a host, through shared memory. The members of an epoch reduce together.
// Buckets stay given until forget(), so that a failed reduction is repeated in the next epoch by
// calling only begin(). The ring's own thread moves the bytes, so that a rank that is busy computing
// never looks dead. docs/design/ring_reduce.md has the algorithm and the protocol. Thread rule: any
// thread, also from events; but a caller of stop() or forget() must hold no lock that an event
// waits for.
#pragma once

#include <poll.h>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/log.h"
#include "ft/protocol/identity.h"
#include "ft/ring/handshake_queue.h"
#include "ft/ring/ring_communicator.h"
#include "ft/ring/ring_types.h"
#include "net/tcp_socket.h"

namespace sherd::ft {

// Called from the ring's thread, in the order in which things happened. Exceptions are logged. All
// must be set.
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
  ~Ring();  // Does not wait for peers.
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  std::uint16_t port() const { return listening_.port; }

  // Must be called before the first join(), with the same number at all members: it keeps unknown
  // clients out. `key` is this member's key, which the other members must prove to know. REQUIRES:
  // run is not 0.
  void set_run(std::uint64_t run, const RingKey& key = {});

  // Connects to the peers in the background, while an older epoch may still reduce. Keeps the
  // oldest and the newest epoch and drops those in between. REQUIRES: this rank is a member; the
  // epoch is later than all before.
  void join(RingMembership epoch);

  // Begins to reduce, and ends older epochs. weights[i] belongs to member i; a member of weight 0
  // contributes zeros, whatever it has given. If the epoch was not joined, the call fails.
  // REQUIRES: finite weights for all members, none negative.
  void begin(const Attempt& attempt, std::vector<double> weights);

  // Gives this rank's part of a bucket, before or after begin() and in any order; buckets are
  // reduced in the order of the options. Until forget(), `in` must stay unchanged and `out` belongs to
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
  struct Event {
    Epoch epoch;
    std::function<void()> tell;
  };
  using Disposition = ring::HandshakeQueue::Disposition;
  using IncomingPeer = ring::HandshakeQueue::IncomingPeer;
  using Lock = std::unique_lock<std::mutex>;

  // ---- requests: ring.cpp. REQUIRES, where a lock is passed: it holds mu_ ----

  // Requests are carried out soon, in the order of the calls. Returns the request's number.
  std::uint64_t post(Lock& lock, std::function<void()> request);
  // Returns when the request has been carried out.
  void wait(Lock& lock, std::uint64_t request);
  void carry_out(Lock& lock);
  void publish(Lock& lock);

  // ---- the thread, and what works on its state: ring_loop.cpp ----

  void run();
  bool turn();
  void tell_events();
  void sleep(bool moved);
  void fail_all(const std::string& reason);
  void do_join(ring::RingCommunicator::Route route);
  void do_begin(const ReduceTask& task);
  void do_stop(const Epoch& epoch);
  void do_forget();
  void end_lease();
  Disposition decide(IncomingPeer& caller);
  Disposition refuse(
      IncomingPeer& caller, std::uint64_t& counter, const std::string& reason);
  bool advance(ring::RingCommunicator& communicator);
  void remember(const ring::RingCommunicator& communicator);
  ring::RingCommunicator* communicator_of(const Epoch& epoch);

  const RingEvents events_;
  // An eventfd, which post() writes after it has added a request: poll() finds it readable until it
  // is read, and requests are carried out after that.
  const Descriptor wake_;
  const SteadyClock clock_;

  // The thread's state. While the thread is in an event, the state belongs to the holder of the
  // mutex, so that events may take their time and stop() need not wait for them.
  LimitedLog log_;
  ring::RingContext context_;
  const net::ListeningSocket listening_;
  ring::HandshakeQueue handshakes_;
  std::map<Epoch, std::unique_ptr<ring::RingCommunicator>> communicators_;
  // The last few epochs, for connections that come too late.
  std::map<Epoch, RingEnding> past_;
  Epoch newest_;
  std::vector<pollfd> polls_;

  mutable std::mutex mu_;
  // Guarded by mu_. Arguments are checked on the caller's thread, against a copy of what was set
  // before or against the options, which never change.
  std::uint64_t run_ = 0;
  std::vector<bool> given_;
  std::optional<Epoch> last_joined_;
  std::map<Epoch, std::size_t> members_;  // Epochs that may be begun.
  // Guarded by mu_, too. wait() reads done_ and in_event_; code that raises done_ or sets in_event_
  // notifies all before it releases mu_. While the thread is in an event, waiters carry out the
  // requests themselves.
  std::deque<std::function<void()>> requests_;
  std::uint64_t asked_ = 0;
  std::uint64_t done_ = 0;
  bool in_event_ = false;
  bool quits_ = false;
  std::deque<Event> untold_;
  RingCounters counters_;
  RingProgress progress_;
  std::condition_variable changed_;

  std::thread thread_;  // Declared last because it uses the other members.
};

}  // namespace sherd::ft
