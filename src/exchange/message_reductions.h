// SPDX-License-Identifier: Apache-2.0
//
// MessageReductions reduces gradients between processes: each rank sends every peer its part of a
// slot, and sums what the peers sent for its own part. Reductions may start at any time and in any
// order, because messages are distinguished by flat; they are waited for and summed in the order of
// their start, on a thread of their own, while backward continues. With a communication hook that
// thread calls the hook for one unit after another instead, and no gradient is sent here. Thread
// rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>
#include "base/worker_thread.h"
#include "exchange/gradient_chunks.h"
#include "exchange/private_buffers.h"
#include "exchange/reduce_hook.h"
#include "world/transport.h"

namespace sherd::exchange {

// The number of a flat among all of the model, unit after unit.
int flat_number(const ModelSpec& model, UnitId unit, std::size_t flat);

class MessageReductions {
 public:
  // All must outlive it.
  MessageReductions(
      const ModelSpec& model,
      world::Transport& via,
      PrivateBuffers& memories,
      std::optional<ReduceHook> hook = std::nullopt);

  // The unit's open gradient slot; opens one if there is none.
  const std::vector<at::Tensor>& slot(UnitId unit);

  // Takes the unit's gradient slot. Waits as options.under_way_max says.
  void start(UnitId unit, const ReduceOptions& options);

  // Takes back the memory of what is summed, and returns the first failure so far. Never waits.
  Status progress();

  // The units summed since the last call, in the order of their sums.
  std::vector<UnitId> take_ended() { return std::exchange(ended_, {}); }

  bool under_way() const { return worker_.busy() || !shared_.empty(); }
  std::int64_t under_way_peak() const { return under_way_peak_; }

  // Waits until all are summed and, if gradients are replicated, until every rank has all of them.
  Status finish();

  // The next reduction of each unit overwrites its gradient.
  void backward_ended() { reduced_once_.clear(); }

  // Waits until no sum is being made any more. REQUIRES: the transport was abandoned, which ends
  // waits for peers.
  void settle() { worker_.settle(); }

 private:
  // A part of this rank's slice: the gradients of every rank for it, by rank.
  struct Sum {
    std::size_t flat = 0;
    plan::ElementRange range;  // Of the flat.
    std::vector<at::Tensor> pieces;
  };
  struct Reduction {
    UnitId unit = 0;
    ReduceOptions options;
    PrivateBuffers::Slot slot;
    PrivateBuffers::Slot staging;
    std::vector<Sum> sums;
    world::Transfers transfers;
    bool summed = false;  // Not set if it failed.
  };

  std::int64_t staging_bytes(UnitId unit) const;
  void wait_for_room(const ReduceOptions& options);
  void post_unit(Reduction& reduction);
  void post_segment(
      Reduction& reduction,
      std::size_t flat,
      const GradientChunk& chunk,
      const at::Tensor& gradient,
      char*& staging);
  Status complete(const Reduction& reduction);
  bool may_reduce_in_place(UnitId unit) const;
  Status complete_by_hook(Reduction& reduction);
  // Puts this rank's part of the mean that the hook has left in the slot where the sum goes.
  void take_result(const Reduction& reduction, std::size_t flat);
  void reclaim();
  // The part of the sum's destination. REQUIRES: this rank owns it.
  at::Tensor sum_of(
      const Reduction& reduction,
      std::size_t flat,
      const plan::ElementRange& range) const;
  void share(const Reduction& reduction);

  const ModelSpec& model_;
  world::Transport& via_;
  PrivateBuffers& memories_;
  const std::optional<ReduceHook> hook_;
  std::set<UnitId> reduced_once_;  // By the hook, in this backward.
  std::vector<std::vector<std::vector<GradientChunk>>>
      chunks_;                 // By unit, flat.
  std::vector<UnitId> ended_;  // Not yet taken.
  // Replicated units, without a hook: summed here since the last finish(), then sent to and
  // received from the other ranks.
  std::vector<std::shared_ptr<Reduction>> shared_;
  world::Transfers sharing_;
  std::uint64_t last_job_ = 0;        // All jobs are reductions.
  bool room_wait_timed_out_ = false;  // Since the last finish().
  std::int64_t under_way_peak_ = 0;
  std::mutex mu_;
  // Guarded by mu_: summed by the worker, but the memory is not yet returned.
  std::vector<std::shared_ptr<Reduction>> summed_;
  WorkerThread worker_;  // The last member: its jobs use the others.
};

}  // namespace sherd::exchange
