// SPDX-License-Identifier: Apache-2.0
//
// SharedMemoryReductions reduces gradients that lie in shared memory. A rank posts its slot, and the
// owner of a slice sums it over the slots of all ranks, in rank order, once all have posted. A slot is
// free again when every owner has summed. Where gradients are replicated, every rank then takes the
// slices of the others. Thread rule: one thread; sinks are called on it or on the one it makes.
// Ordering: docs/design/shared_memory.md.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>
#include "base/worker_thread.h"
#include "exchange/shared_gradient_slots.h"
#include "exchange/shared_units.h"

namespace sherd::exchange {

class SharedMemoryReductions {
 public:
  // `units` must outlive it. `thread`: one of its own waits for the other ranks
  // and sums, in the order of posts, instead of progress().
  SharedMemoryReductions(
      SharedGradientSlots::Mapping mapping,
      const SharedUnits& units,
      bool thread);
  ~SharedMemoryReductions() { stop(); }
  SharedMemoryReductions(const SharedMemoryReductions&) = delete;
  SharedMemoryReductions& operator=(const SharedMemoryReductions&) = delete;

  // This rank's slot; undefined where frozen. The same until post().
  std::vector<at::Tensor> slot(UnitId unit) { return slots_.slot(unit); }
  void post(UnitId unit, const ReduceOptions& options);

  // Sums what all ranks have posted, takes what all have summed. Never waits.
  void progress();
  // Nothing is summed any more when it returns: gradients are neither read nor
  // written, and no sink is called, whatever other ranks still post. REQUIRES:
  // not called in a sink; of the calls above none follows.
  void stop();
  // The first failure of the thread's sums; progress() goes no further after it.
  Status failure() const { return worker_ ? worker_->failure() : Status(); }
  // Until the thread has made the oldest sum under way, or that long.
  void wait_for_thread(std::chrono::milliseconds time);
  // The units summed since the last call, in that order.
  std::vector<UnitId> take_ended() { return std::exchange(ended_, {}); }
  // The first rank that the oldest sum under way waits for; nothing when there is none, or
  // progress() could make it.
  std::optional<SharedGradientSlots::Missing> missing() const;

  // Posted here and not summed, or taken, here.
  std::int64_t under_way() const {
    return static_cast<std::int64_t>(pending_.size() + summed_.size());
  }
  std::int64_t under_way_peak() const { return under_way_peak_; }
  std::int64_t slot_bytes() const { return slots_.bytes(); }
  std::int64_t slot_bytes_peak() const { return slots_.bytes_peak(); }

 private:
  struct Pending {
    UnitId unit = 0;
    std::uint64_t number = 0;
    ReduceOptions options;
    std::uint64_t job = 0;  // Of worker_.
  };
  // Replicated: summed here, not taken yet.
  struct Summed {
    UnitId unit = 0;
    std::uint64_t number = 0;
    std::vector<at::Tensor> into;  // As ReduceOptions::into.
  };

  const UnitSpec& spec(UnitId unit) const {
    return model_.units[static_cast<std::size_t>(unit)];
  }
  bool replicates() const {
    return model_.placement == ModelPlacement::kReplicate;
  }
  bool try_sum(const Pending& pending);
  Status sum_when_posted(const Pending& pending);
  void sum(const Pending& pending) const;
  void take(const Summed& summed) const;

  const ModelSpec& model_;
  const int rank_;
  const SharedUnits& units_;
  SharedGradientSlots slots_;
  std::deque<Pending> pending_;  // Not summed here yet.
  std::deque<Summed> summed_;
  std::vector<UnitId> ended_;
  std::int64_t under_way_peak_ = 0;
  std::atomic<bool> stopping_ = false;
  std::optional<WorkerThread> worker_;  // The last member: it uses the others.
};

}  // namespace sherd::exchange
