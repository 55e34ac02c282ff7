// SPDX-License-Identifier: Apache-2.0
//
// TransferServer serves one rank's snapshots, and the gradient sums that lead from one state to the
// next, to the same ranks of replicas that catch up. It shares the bytes that it is given and
// copies nothing. Clients request each chunk, so that a slow client neither delays others nor fills
// memory. Thread rule: its loop, except for digests_of().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "base/clock.h"
#include "ft/protocol/messages.h"
#include "net/loop.h"
#include "net/security.h"

namespace sherd::ft {

struct TransferServerOptions {
  // ---- behaviour ----
  std::string host = "127.0.0.1";
  net::Security security{};
  int shard_rank = 0;
  // How long a snapshot is kept after it was offered or last fetched, and how long sums are kept
  // after a client has begun to need them. Costs a state's memory.
  Duration kept = std::chrono::seconds(10);
  // A client that is silent for this long is dropped, because it would keep a state in memory. A
  // link that takes longer for a chunk cannot catch up.
  Duration silence_max = std::chrono::seconds(20);
  // How long sent bytes may stay unacknowledged before a client counts as lost.
  Duration user_timeout = std::chrono::seconds(5);
  // A request for a snapshot gets the last one if that is at most this old, or if clients still
  // fetch states_max others.
  Duration fresh = std::chrono::seconds(1);
  // How many states clients fetch at a time; each costs its memory. One more drops the clients of
  // the oldest.
  int states_max = 2;
  // How many sums are kept even if nobody needs them; each costs the memory of this rank's
  // gradients. While a client needs more, sums_bytes_max limits all of them.
  int sums_kept = 2;
  std::uint64_t sums_bytes_max = std::uint64_t{4} << 30U;
  // ---- performance ----
  // The rate limit of states, for all clients together; 0 means no limit. Sums have no limit: a
  // client that gets fewer of them than are made never catches up.
  std::uint64_t bytes_per_s_max = 0;
};

class TransferServer {
 public:
  // Listens at once, on a free port. `snapshot_wanted` is called from the loop when a client has
  // asked for a snapshot, and is answered with offer(), inside the call or later. It may be called
  // again before that, if those clients have gone. Throws Error if it cannot listen, as
  // net::Listener does, and for a negative sums_kept. The loop must outlive the server.
  TransferServer(
      net::Loop& loop,
      const TransferServerOptions& options,
      std::function<void()> snapshot_wanted);
  TransferServer(const TransferServer&) = delete;
  TransferServer& operator=(const TransferServer&) = delete;
  // Closes all connections. REQUIRES: it is not called inside snapshot_wanted.
  ~TransferServer();

  std::uint16_t port() const;
  // Until this call all requests are refused, and afterwards those of other runs.
  void set_run(std::uint64_t run);

  // Announces that `state` will be offered: clients that ask for a snapshot get its name at once,
  // and can fetch the same one from other donors. Returns false if it is offered already, so that
  // it need not be copied again.
  bool promise(const StateId& state);
  // Takes the promise back: nobody can make the snapshot any more, and clients may ask for another.
  void withdraw(const StateId& state);
  // Offers this rank's part of `state` in place of an older snapshot, and answers the clients that
  // wait for it. Clients of the older one continue with its bytes, up to states_max. `digests` is
  // digests_of() the bytes. The sums since `state` are kept from its promise on, or from now on, so
  // it must be offered before sums_kept more of them are made.
  void offer(
      const StateId& state,
      std::shared_ptr<const std::string> bytes,
      std::vector<std::uint64_t> digests);
  // Reads all bytes. May be called from any thread.
  std::vector<std::uint64_t> digests_of(const std::string& bytes) const;
  // Keeps the sum that led from commit.base to commit.result, and answers the clients that wait for
  // it. The last sums_kept stay, and so do all since the oldest state that is kept or that a client
  // is at, up to sums_bytes_max.
  void keep(const Commit& commit, std::shared_ptr<const std::string> bytes);

  // For states and sums.
  std::uint64_t bytes_sent() const;
  // Whether a client is fetching or waits for a snapshot.
  bool busy() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
