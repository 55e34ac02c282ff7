// SPDX-License-Identifier: Apache-2.0
//
// HierarchicalReductions reduces gradients over ranks of several hosts. Each rank posts its slot in
// the shared memory of its host. For each slice, one rank of the host (host_topology.h) sums the
// slots, in rank order, and sends the sum to the slice's owner, which adds the sums of all hosts in
// the order of hosts. So the bits depend on which ranks share a host, and on nothing else. Sums are
// sent in the precision in which they are made. One thread sums what the host has, another waits
// for what other hosts send. Thread rule: one thread. Ordering: docs/design/hierarchical.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
#include "base/worker_thread.h"
#include "exchange/host_topology.h"
#include "exchange/private_buffers.h"
#include "exchange/shared_gradient_slots.h"
#include "shm/waiter.h"
#include "world/transport.h"

namespace sherd::exchange {

class HierarchicalReductions {
 public:
  // All must outlive it. `memories` has the sharded gradients, and send buffers; the ranks of
  // `mapping` are local ranks.
  HierarchicalReductions(
      const ModelSpec& model,
      const HostTopology& map,
      PrivateBuffers& memories,
      world::Transport& via,
      const shm::Waiter& waiter,
      SharedGradientSlots::Mapping mapping);

  // As in Exchange.
  void begin_backward() { slots_.begin_backward(); }
  std::vector<at::Tensor> slot(UnitId unit) { return slots_.slot(unit); }
  void start(UnitId unit, const ReduceOptions& options);
  // Takes back the memory of reductions that ended, and returns the first failure so far. Never
  // waits.
  Status progress();
  // Waits until everything that was started is summed here.
  Status finish();
  // Waits until no sum is being made any more. REQUIRES: the transport was abandoned, and this rank
  // has given up, which ends waits for peers.
  void settle();

  // The units summed since the last call, in the order of their sums.
  std::vector<UnitId> take_ended() { return std::exchange(ended_, {}); }

  bool under_way() const { return completed() < started_; }
  // Call it after PrivateBuffers::add_to().
  void add_to(ExchangeCounters& counters) const;

 private:
  // This host's sum for the slice of one rank.
  struct HostSum {
    std::size_t flat = 0;
    int owner = 0;
    at::Tensor sum;
  };
  struct Reduction {
    UnitId unit = 0;
    std::uint64_t number = 0;
    ReduceOptions options;
    PrivateBuffers::Slot staging;
    std::vector<HostSum> sums;
    // By flat, by host: the sum of each host for this rank's slice.
    std::vector<std::vector<at::Tensor>> own;
    world::Transfers transfers;
    bool summed = false;  // Not set if it failed.
  };
  std::uint64_t completed() const { return completer_.ended(); }
  void wait_for_room(const ReduceOptions& options);
  void reclaim();
  void stage(Reduction& reduction);
  void receive(Reduction& reduction);

  // Run by the summing thread.
  Status sum_here(const std::shared_ptr<Reduction>& reduction);
  // Run by the waiting thread.
  Status complete(const Reduction& reduction);

  const ModelSpec& model_;
  const HostTopology& map_;
  PrivateBuffers& memories_;
  world::Transport& via_;
  const shm::Waiter& waiter_;
  SharedGradientSlots slots_;
  std::vector<UnitId> ended_;  // Not yet taken.
  std::uint64_t started_ = 0;
  bool room_wait_timed_out_ = false;  // Since the last finish().
  std::int64_t under_way_peak_ = 0;
  std::mutex transport_mu_;  // Held to start a transfer.
  std::mutex mu_;
  // Guarded by mu_: completed, but their staging memory is not yet returned.
  std::vector<std::shared_ptr<Reduction>> completed_;
  // The last members, because their jobs use the others. The one that sums posts to the other, so
  // it ends first.
  WorkerThread completer_{"sherd-reduce"};
  WorkerThread summer_{"sherd-sum"};
};

}  // namespace sherd::exchange
