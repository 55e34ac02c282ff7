// SPDX-License-Identifier: Apache-2.0
//
// StreamReductions reduces gradients of a device by collectives in a stream of its own, while
// backward goes on. Collectives must start in one order on all ranks, which may be ready in
// different ones: so a reduction that was asked for stays open until all ranks know that all have
// asked for it. Without whole units there is nothing that ranks would do in other orders, and a rank
// alone has no peers: a reduction starts at once. REQUIRES there: one order on all ranks. A communication hook takes the place of
// the sum; the thread that starts a reduction calls it. Thread rule: open_units() and start_units() of
// the thread that gathers, the rest of the caller's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
#include "exchange/comm_hook_unit_transport.h"
#include "exchange/device_buffers.h"
#include "exchange/flat_collectives.h"

namespace sherd::exchange {

// A hook, and how it reaches the other ranks.
struct StreamHook {
  ReduceHook hook;
  std::shared_ptr<world::Transport> messages;
  std::unique_ptr<DeviceCollectives> collectives;
};

class StreamReductions {
 public:
  // The model and the buffers must outlive it.
  StreamReductions(
      const ModelSpec& model,
      BackendPtr backend,
      DeviceBuffers& buffers,
      std::optional<StreamHook> hook = std::nullopt);

  // Takes the unit's gradient slot, whose values come from the current stream. Never waits.
  void start(UnitId unit, const ReduceOptions& options);

  // The caller starts another gather, whose number it gets, and goes on after the one of a number.
  // Who has waited for a gather knows that what was asked for before it has started, on all ranks.
  std::uint64_t gather_begins() { return ++gathers_begun_; }
  void gather_is_over(std::uint64_t number) {
    gathers_over_ = std::max(gathers_over_, number);
  }

  // By unit, one byte each: asked for here and still open.
  std::vector<std::uint8_t> open_units() const;
  // Puts those units' reductions into the stream. The same on all ranks, of units that all have open.
  void start_units(const std::vector<std::uint8_t>& units);

  // Takes back the memory of what was started, and the current stream goes on when all of it is done.
  void finish();
  // Takes back the memory of what has started for certain: how many slots a backward needs shall not
  // depend on when the thread that gathers comes to start reductions.
  void reclaim();

  // Ends collectives that wait for peers, and forgets what was not started.
  void abandon();

  // The units whose sums come before what the current stream has been given since finish(); those
  // since the last call.
  std::vector<UnitId> take_ended() { return std::exchange(ended_, {}); }
  bool under_way() const;
  std::int64_t under_way_peak() const { return under_way_peak_; }

 private:
  struct Reduction {
    UnitId unit = 0;
    ReduceOptions options;
    PrivateBuffers::Slot slot;
    device::Event filled;
    std::uint64_t gathers_before = 0;  // Begun when it was asked for.
  };

  const UnitSpec& spec(UnitId unit) const {
    return model_.units[static_cast<std::size_t>(unit)];
  }
  void fill_slot(const Reduction& reduction) const;
  void put_into_stream(Reduction& reduction);
  // Leaves this rank's part of the mean in the slot.
  void call_hook(const Reduction& reduction);
  void release_started(const std::function<bool(const Reduction&)>& which);
  // What this rank keeps of the sum over ranks or, with a hook, of their mean; `into` itself where it
  // is defined and the sum could be made there.
  at::Tensor result_of(
      UnitId unit,
      int flat,
      const at::Tensor& slot,
      const at::Tensor& into) const;

  const ModelSpec& model_;
  const BackendPtr backend_;
  DeviceBuffers& buffers_;
  const std::optional<StreamHook> hook_;
  const bool starts_at_once_;
  std::vector<UnitId> released_;  // Their memory is given back.
  std::vector<UnitId> ended_;     // For take_ended().
  std::int64_t under_way_peak_ = 0;
  std::uint64_t gathers_begun_ = 0;
  std::uint64_t gathers_over_ = 0;
  mutable std::mutex mu_;
  // Guarded by mu_:
  std::map<UnitId, Reduction> open_;
  std::vector<Reduction> started_;
};

}  // namespace sherd::exchange
