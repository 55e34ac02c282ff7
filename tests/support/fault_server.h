// SPDX-License-Identifier: Apache-2.0
//
// FaultServer is what runs in the process of a FaultProxy: the loop around its
// connections and the test's commands. Thread rule: one thread.
#pragma once

#include <poll.h>
#include <cstdint>
#include <list>
#include <optional>
#include <random>
#include <vector>
#include "base/clock.h"
#include "base/descriptor.h"
#include "support/fault_proxy.h"
#include "support/fault_stream.h"

namespace sherd::test {

// One message from the test. It is answered when it is in force; kChange is answered when traffic
// differs from `seen`. A later command replaces a waiting kChange.
struct FaultCommand {
  enum class What {
    kSet,
    kReset,
    kClose,
    kRefuse,
    kAccept,
    kTarget,
    kChange,
    kNothing,
  };
  What what = What::kNothing;
  Direction direction = Direction::kToTarget;
  Faults faults;
  int port = 0;
  Traffic seen;
  std::uint64_t serial = 0;
};

struct FaultAnswer {
  std::uint64_t serial = 0;  // That of the command.
  Traffic traffic;
};

// From now on segments that come to this socket are lost at this rate. Returns false if that is
// impossible.
bool lose_segments(const Descriptor& socket, int per_mille);

class FaultServer {
 public:
  // `control` is a SOCK_SEQPACKET socket that carries commands.
  FaultServer(
      const FaultProxyOptions& options,
      Descriptor listener,
      Descriptor control);

  // Runs until the test is gone.
  void run();

 private:
  struct Connection {
    Descriptor client;
    Descriptor target;
    bool connecting = true;
    FaultStream streams[2];  // Indexed by direction.
  };

  void poll_once();
  // Adds their events, two entries per connection.
  void add_polled(const Connection& each, std::vector<pollfd>& polled) const;
  Cut handle(Connection& each, const pollfd& client, const pollfd& target);
  std::optional<Instant> deadline() const;
  void obey();
  void answer(std::uint64_t serial);
  void accept();
  // Does everything that is due and removes connections that have ended.
  void pump();
  Cut forward(Connection& each);
  void cut(Connection& each, Cut how) const;
  void cut_all(Cut how);
  std::list<Connection>::iterator remove(std::list<Connection>::iterator each);
  // The faults of this direction, without offsets once these have struck often enough.
  Faults faults_of(const Connection& each, int direction) const;
  Traffic traffic() const;

  SteadyClock clock_;
  std::mt19937_64 random_;
  int target_port_;
  int segments_lost_per_mille_;
  Descriptor listener_;
  Descriptor control_;
  Faults faults_[2];
  std::int64_t strikes_left_[2] = {0, 0};  // Used only with strikes_max.
  bool refuses_ = false;
  std::optional<FaultCommand> waiting_;  // For a change.
  bool over_ = false;
  std::list<Connection> connections_;
  Traffic closed_;  // The traffic of connections that are gone.
};

}  // namespace sherd::test
