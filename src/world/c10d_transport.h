// SPDX-License-Identifier: Apache-2.0
//
// C10dTransport is a Transport over one c10d backend, with waits that end when any rank of the
// group is lost; a message that has arrived by then is received. Only send and receive of the
// backend are used: over Gloo they are faster than its collectives, need none of its worker threads
// (whose work its destructor would wait for), and can be interrupted.
//
// It relies on these facts about Gloo: a wait that times out breaks every connection of the group;
// Work::abort() makes a wait return false and breaks nothing; a message under way when its
// connection breaks never ends by itself; the memory of a message is read and written until its
// connection is closed. Hence the first failure breaks all connections of the group before any wait
// returns it.
//
// A rank that leaves a group sends every member a leave message (docs/design/exchange.md, "An orderly
// end"). Thread rule: that of Transport; leave() and the watch's interrupt() may come from any
// thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include "base/clock.h"
#include "base/status.h"
#include "world/peer_watch.h"
#include "world/transport.h"

namespace c10d {
class Backend;
}

namespace sherd::world {

class C10dTransport final : public Transport {
 public:
  struct Options {
    std::vector<int> ranks;  // World ranks, ascending.
    int own_rank = 0;        // A world rank. REQUIRES: it is one of `ranks`.
    std::chrono::milliseconds deadline{0};
    std::string
        name;  // What a member closes when it leaves, for errors: "its World".
  };

  // `watch` must outlive the transport. `backend` may be null for one rank.
  C10dTransport(
      const Options& options,
      c10::intrusive_ptr<c10d::Backend> backend,
      PeerWatch& watch);
  ~C10dTransport() override;

  std::unique_ptr<Transfer> send(
      const at::Tensor& tensor, int peer, int tag) override;
  std::unique_ptr<Transfer> receive(
      const at::Tensor& tensor, int peer, int tag) override;
  void abandon(const Status& why) override;
  void leave() override;

  // Collective: leaves, and returns when every member has left. Member 0 calls `at_last` in
  // between: after all have left, and before any other member returns.
  Status close(const std::string& what, const std::function<void()>& at_last);

  // Whether no member is outside `others`.
  bool has_only(const std::vector<int>& others) const;
  // The first failure, or success.
  Status failure() const;

 private:
  struct Operation;  // The backend's handle on a message.
  using OperationPtr = std::shared_ptr<Operation>;
  struct Message;
  enum class Direction { kSend, kReceive };
  Message start(
      Direction direction, const at::Tensor& tensor, int peer, int tag);
  // Whether a peer that has left sent the awaited message before it left (kIsDone), as its leave
  // message (kSaysSo), or goes on and sends it afterwards (kGoesOn).
  enum class Leaver { kIsDone, kSaysSo, kGoesOn };
  Status wait(Message& message, const std::string& what, Leaver leaver);
  enum class Outcome { kComplete, kInterrupted, kBroken };
  Outcome wait_once(const Message& message, std::chrono::milliseconds limit);
  static bool has_ended(const Operation& operation);

  int own_rank() const { return world_rank(index()); }
  bool lost() const;
  // For a member whose death shows only in its connection: a receive that is never answered, and
  // fails with the connection. Null if the connection was broken when it began.
  struct Probe {
    int peer;
    OperationPtr receive;
  };
  bool is_broken(const Probe& probe);
  void probe_unwatched(int needed);
  OperationPtr expect(const at::Tensor& tensor, int peer, int tag);
  void expect_messages();
  void send_leave_message();
  std::uint8_t leave_message_of(int peer) const;
  bool has_left(int peer) const { return leave_message_of(peer) != 0; }
  std::optional<PeerLoss> left_in_order(int peer) const;
  std::string likely_reason(int peer) const;
  Status fail(const Message& message, const std::string& what, Instant began);
  Status keep(const Status& failure);
  void end_messages();
  std::optional<bool> has_answered(int member, const Operation& silent);
  std::string place_of(const Message& silent);
  std::string doing(const std::string& what, int peer) const;
  void interrupt();
  enum class Waits { kAll, kForLeavers };
  void abort_waits(Waits which);
  void break_connections();

  const std::chrono::milliseconds deadline_;
  const std::string name_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  PeerWatch& watch_;
  const SteadyClock clock_;
  int subscription_ = 0;
  std::atomic<int> ticks_ = 0;
  // The leave message of each member, 0 until it arrives; the backend writes it.
  const at::Tensor leave_bytes_;
  // The receives of these, by member.
  std::vector<OperationPtr> leave_messages_;
  std::vector<Probe> probes_;
  std::mutex probing_;  // Each wait for a probe uses up one abort.

  // Held from a failure until no memory of the group is read or written any more, so that a second
  // thread that fails does not return sooner. Never acquired while holding mu_.
  std::mutex ending_;
  mutable std::mutex mu_;
  // Guarded by mu_:
  Status failure_;  // The first one.
  bool abandoned_ = false;
  bool left_ = false;
  // What was last received from each member.
  struct Received {
    int tag = -1;
    Instant when{};
  };
  std::vector<Received> received_;
  // Kept until waited for: c10d cancels an operation whose last handle is released.
  std::vector<OperationPtr> outstanding_;
  // The waits of this rank's threads, so that they can be interrupted.
  std::vector<const Message*> waits_;
};

}  // namespace sherd::world
