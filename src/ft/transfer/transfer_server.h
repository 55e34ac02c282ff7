// SPDX-License-Identifier: Apache-2.0
//
// TransferServer gives what one rank of a replica has to its counterparts in
// replicas that catch up: snapshots of its state, and the sums that led from one
// state to the next. It takes no copy: who offers bytes shares them. Those who
// fetch ask for each chunk, so that a slow one holds up nobody and fills no
// memory. Thread rule: its loop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
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
  // Sums that are kept though nobody needs them, and at most. Each costs the
  // memory of this rank's gradients.
  int sums_kept = 2;
  int sums_kept_max = 64;
  // Performance.
  std::uint64_t bytes_per_s_max = 0;  // To all together; 0: no limit.
};

class TransferServer {
 public:
  // Listens at once, on a port that is free. `snapshot_wanted` is called from the
  // loop when somebody has asked for a snapshot: offer() is the answer, inside it
  // or later. It may be called again before that, when those who asked have gone.
  // Throws Error when it cannot listen, as net::Listener does, and for numbers of
  // sums that do not fit each other. The loop outlives it.
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

  // This rank's part of `state`: answers all who wait for it, in place of an older
  // one. Who fetches that one goes on with its bytes. Sums since `state` are kept
  // from now on, so it is to come before sums_kept more of them.
  void offer(const StateId& state, std::shared_ptr<const std::string> bytes);
  // The sum that made commit.result of commit.base. Kept are the last sums_kept,
  // and all since the oldest state that is kept, or that somebody who fetches has
  // come to, but at most sums_kept_max.
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
