// SPDX-License-Identifier: Apache-2.0
//
// TransferServer gives what one rank of a replica has to its counterparts in
// replicas that catch up: snapshots of its state, and the sums that led from one
// state to the next. It takes no copy: who offers bytes shares them. Those who
// fetch ask for each chunk, so that a slow one holds up nobody and fills no
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
  // A snapshot stays for so long after it was offered or last fetched, and sums
  // for as long after somebody has begun to need them. Costs a state's memory.
  Duration kept = std::chrono::seconds(10);
  // Who fetches and has not been heard for so long is given up: it would keep a
  // state in memory. On a link that is slower than a chunk in this time there is
  // no catching up.
  Duration silence_max = std::chrono::seconds(20);
  // Who asks for a snapshot gets the last one when it is no older.
  Duration fresh = std::chrono::seconds(1);
  // Sums that are kept though nobody needs them; each costs the memory of this
  // rank's gradients. While somebody does, all of this many bytes together.
  int sums_kept = 2;
  std::uint64_t sums_bytes_max = std::uint64_t{4} << 30U;
  // Performance. Of states, to all together; 0: no limit. Sums have none: who
  // gets fewer than are made never catches up.
  std::uint64_t bytes_per_s_max = 0;
};

class TransferServer {
 public:
  // Listens at once, on a port that is free. `snapshot_wanted` is called from the
  // loop when somebody has asked for a snapshot: offer() is the answer, inside it
  // or later. It may be called again before that, when those who asked have gone.
  // Throws Error when it cannot listen, as net::Listener does, and for less than
  // no sums. The loop outlives it.
  TransferServer(
      net::Loop& loop,
      const TransferServerOptions& options,
      std::function<void()> snapshot_wanted);
  TransferServer(const TransferServer&) = delete;
  TransferServer& operator=(const TransferServer&) = delete;
  // Ends what is fetched. REQUIRES: not inside snapshot_wanted.
  ~TransferServer();

  std::uint16_t port() const;
  // Until then, and of another run, requests are refused.
  void set_run(std::uint64_t run);

  // An offer of `state` is to come: who asked for a snapshot is told so at once,
  // and can ask others for the same one.
  void promise(const StateId& state);
  // This rank's part of `state`: answers all who wait for it, in place of an older
  // one. Who fetches that one goes on with its bytes. `digests` are digests_of()
  // them. Sums since `state` are kept from its promise on, or from now on, so it
  // is to come before sums_kept more of them.
  void offer(
      const StateId& state,
      std::shared_ptr<const std::string> bytes,
      std::vector<std::uint64_t> digests);
  // The same, and reads all bytes before it returns.
  void offer(const StateId& state, std::shared_ptr<const std::string> bytes);
  // From any thread: it reads all bytes.
  std::vector<std::uint64_t> digests_of(const std::string& bytes) const;
  // The sum that made commit.result of commit.base. Kept are the last sums_kept,
  // and all since the oldest state that is kept, or that somebody who fetches has
  // come to, but at most sums_bytes_max. Answers who waits for it.
  void keep(const Commit& commit, std::shared_ptr<const std::string> bytes);

  // Of states and sums.
  std::uint64_t bytes_sent() const;
  // Somebody fetches, or waits for a snapshot.
  bool busy() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::ft
