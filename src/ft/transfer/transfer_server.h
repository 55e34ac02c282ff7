// SPDX-License-Identifier: Apache-2.0
//
// TransferServer serves one rank's snapshots, and the gradient sums that lead from one state to the
// next, to the same ranks of replicas that catch up. It shares the bytes that it is given and
// copies nothing. Clients request each chunk, so that a slow client holds up nobody and fills no
// memory. Thread rule: its loop, but for digests_of().
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "base/clock.h"
#include "ft/protocol/messages.h"
#include "net/host_address.h"
#include "net/loop.h"
#include "net/security.h"

namespace sherd::ft {

struct TransferServerOptions {
  // Behaviour.
  std::string host = "127.0.0.1";
  net::Security security{};
  int shard_rank = 0;
  // How long a snapshot stays after it was offered or last fetched, and the sums after a client has
  // begun to need them. Costs a state's memory.
  Duration kept = std::chrono::seconds(10);
  // A client that is silent for so long is given up, because it would keep a state in memory. A
  // link that takes longer for a chunk cannot catch up.
  Duration silence_max = std::chrono::seconds(20);
  // A request for a snapshot gets the last one when it is no older, or when clients still fetch
  // states_max others.
  Duration fresh = std::chrono::seconds(1);
  // States that clients fetch at a time, each of which costs its memory. One more drops the clients
  // of the oldest.
  int states_max = 2;
  // The number of sums that are kept although nobody needs them; each costs the memory of this
  // rank's gradients. While a client needs more, the limit in bytes of all.
  int sums_kept = 2;
  std::uint64_t sums_bytes_max = std::uint64_t{4} << 30U;
  // Performance. The rate limit of states, for all clients together; 0: none. Sums have no limit: a
  // client that gets fewer than are made never catches up.
  std::uint64_t bytes_per_s_max = 0;
};

class TransferServer {
 public:
  // Listens at once, on a free port. `snapshot_wanted` is called from the loop when a client has
  // asked for a snapshot; answer with offer(), inside the call or later. It may be called again
  // before that, when those clients have gone. Throws Error when it cannot listen, as net::Listener
  // does, and for a negative sums_kept. The loop outlives it.
  TransferServer(
      net::Loop& loop,
      const TransferServerOptions& options,
      std::function<void()> snapshot_wanted);
  TransferServer(const TransferServer&) = delete;
  TransferServer& operator=(const TransferServer&) = delete;
  // Closes all connections. REQUIRES: not inside snapshot_wanted.
  ~TransferServer();

  std::uint16_t port() const;
  // Requests of other runs are refused, and all requests before this call.
  void set_run(std::uint64_t run);

  // Announces that `state` will be offered: clients that ask for a snapshot get its name at once,
  // and can fetch the same one from other donors. False: it is offered already, so that nobody
  // needs to copy it again.
  bool promise(const StateId& state);
  // Offers this rank's part of `state` in place of an older snapshot, and answers those who wait
  // for it. Clients of the older one go on with its bytes, up to states_max. `digests` is digests_of() the bytes.
  // Sums since `state` are kept from its promise on, or from now on, so it must come before
  // sums_kept more of them.
  void offer(
      const StateId& state,
      std::shared_ptr<const std::string> bytes,
      std::vector<std::uint64_t> digests);
  // From any thread; reads all bytes.
  std::vector<std::uint64_t> digests_of(const std::string& bytes) const;
  // Keeps the sum that led from commit.base to commit.result, and answers those who wait for it.
  // The last sums_kept stay, and all since the oldest state that is kept or that a client is at, up
  // to sums_bytes_max.
  void keep(const Commit& commit, std::shared_ptr<const std::string> bytes);

  // For states and sums.
  std::uint64_t bytes_sent() const;
  // A client fetches, or waits for a snapshot.
  bool busy() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
