// SPDX-License-Identifier: Apache-2.0
//
// RingLoop is the event loop and thread of a ring: it carries out requests, moves bytes, and calls
// events. Its state belongs to the thread. While the thread is in an event, the state belongs to
// the holder of the mutex, so that events may take their time and stop() need not wait for them.
// Thread rule: any thread.
#pragma once

#include <poll.h>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/limited_log.h"
#include "ft/ring/handshake_queue.h"
#include "ft/ring/ring.h"
#include "ft/ring/ring_communicator.h"
#include "net/tcp_socket.h"

namespace sherd::ft::ring {

class RingLoop {
 public:
  RingLoop(
      RingOptions options, net::ListeningSocket listening, RingEvents events);
  ~RingLoop();
  RingLoop(const RingLoop&) = delete;
  RingLoop& operator=(const RingLoop&) = delete;

  std::uint16_t port() const { return port_; }

  // These are carried out soon, in the order of the calls.
  void set_run(std::uint64_t run, const RingKey& key);
  void set_layout(std::vector<std::int64_t> elements);
  void join(Route route);
  void begin(ReduceTask task);
  void give(int bucket, const float* in, float* out);

  // These have been carried out when they return.
  void stop(const Epoch& epoch);
  // forget() in two parts: the second waits for the request of the first.
  std::uint64_t ask_to_forget();
  void wait(std::uint64_t request);

  RingCounters counters() const;
  RingProgress progress() const;

 private:
  struct Event {
    Epoch epoch;
    std::function<void()> tell;
  };
  using Lock = std::unique_lock<std::mutex>;

  // REQUIRES, where a lock is passed: it holds mu_.
  std::uint64_t post(Lock& lock, std::function<void()> request);
  void post(std::function<void()> request);
  void wait(Lock& lock, std::uint64_t request);
  void carry_out(Lock& lock);

  void run();
  bool turn();
  void publish(Lock& lock);
  void tell_events();
  void sleep(bool moved);
  void fail_all(const std::string& reason);

  // These work on the thread's state.
  void do_join(Route route);
  void do_begin(const ReduceTask& task);
  void do_stop(const Epoch& epoch);
  void do_forget();
  void end_lease();
  HandshakeQueue::Disposition decide(IncomingPeer& caller);
  HandshakeQueue::Disposition refuse(
      IncomingPeer& caller, std::uint64_t& counter, const std::string& reason);
  bool advance(RingCommunicator& communicator);
  void remember(const RingCommunicator& communicator);
  RingCommunicator* communicator_of(const Epoch& epoch);

  const RingEvents events_;
  const Descriptor listener_;
  const std::uint16_t port_;
  // An eventfd, which post() writes after it has added a request: poll() finds it readable until it
  // is read, and requests are carried out after that.
  const Descriptor wake_;
  const SteadyClock clock_;

  // The thread's state.
  LimitedLog log_;
  RingContext context_;
  HandshakeQueue handshakes_;
  std::map<Epoch, std::unique_ptr<RingCommunicator>> communicators_;
  // The last few epochs, for connections that come too late.
  std::map<Epoch, RingEnding> past_;
  Epoch newest_;
  std::vector<pollfd> polls_;

  mutable std::mutex mu_;
  // Guarded by mu_. wait() reads done_ and in_event_; code that raises done_ or sets in_event_
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
  std::uint64_t stops_ = 0;
  std::condition_variable changed_;

  std::thread thread_;  // Declared last because it uses the other members.
};

}  // namespace sherd::ft::ring
