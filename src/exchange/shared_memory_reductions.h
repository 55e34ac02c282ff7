// SPDX-License-Identifier: Apache-2.0
//
// SharedMemoryReductions reduces gradients that lie in shared memory. A rank posts its slot, and
// the owner of a slice sums it over the slots of all ranks, in rank order, once all have posted. A
// slot is free again when every owner has summed. If gradients are replicated, every rank then
// takes the slices of the others. Thread rule: one thread; sinks are called on it or on the thread
// that it makes. Ordering: docs/design/shared_memory.md.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
#include "base/worker_thread.h"
#include "exchange/shared_gradient_slots.h"
#include "exchange/shared_units.h"

namespace sherd::exchange {

class SharedMemoryReductions {
 public:
  // `units` must outlive it. With `thread`, a thread of its own waits for the other ranks and sums
  // instead of progress().
  SharedMemoryReductions(
      SharedGradientSlots::Mapping mapping,
      const SharedUnits& units,
      bool thread);
  ~SharedMemoryReductions() { stop(); }
  SharedMemoryReductions(const SharedMemoryReductions&) = delete;
  SharedMemoryReductions& operator=(const SharedMemoryReductions&) = delete;

  void begin_backward() { slots_.begin_backward(); }
  // This rank's slot; undefined for frozen flats. The same until post().
  std::vector<at::Tensor> slot(UnitId unit) { return slots_.slot(unit); }
  void post(UnitId unit, const ReduceOptions& options);

  // Sums what all ranks have posted, and takes what all have summed. Never waits.
  void progress();
  // When it returns, no more sums are made: gradients are neither read nor written, and no sink is
  // called, whatever other ranks still post. REQUIRES: not called in a sink; none of the calls
  // above follows.
  void stop();
  // The first failure of the thread's sums; after it progress() does nothing more.
  Status failure() const { return worker_ ? worker_->failure() : Status(); }
  // Waits until the thread has made the oldest pending sum, but at most this long.
  void wait_for_thread(std::chrono::milliseconds time) const;
  // The units summed since the last call, in the order of their sums.
  std::vector<UnitId> take_ended() { return std::exchange(ended_, {}); }
  // The first rank for which the oldest pending sum waits; nothing if there is no such sum, or if
  // progress() could make it.
  std::optional<SharedGradientSlots::Missing> missing() const;

  // The number of reductions posted here that are not yet summed or taken here.
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
  };
  // Replicated units: summed here, but not yet taken.
  struct Summed {
    UnitId unit = 0;
    std::uint64_t number = 0;
    std::vector<at::Tensor> into;  // As in ReduceOptions::into.
  };

  bool try_sum(const Pending& pending);
  Status sum_next();
  std::list<Pending> take_posted(
      std::optional<SharedGradientSlots::Missing>& missing);
  void sum(const Pending& pending) const;
  void take(const Summed& summed) const;

  const ModelSpec& model_;
  const int rank_;
  const SharedUnits& units_;
  SharedGradientSlots slots_;
  std::deque<Pending> pending_;  // Not yet summed here.
  std::deque<Summed> summed_;
  std::vector<UnitId> ended_;
  std::int64_t under_way_peak_ = 0;
  std::atomic<bool> stopping_ = false;
  std::mutex mu_;
  // Guarded by mu_: what the thread has not begun to sum, oldest first.
  std::list<Pending> for_thread_;
  std::optional<WorkerThread> worker_;  // The last member: it uses the others.
};

}  // namespace sherd::exchange
