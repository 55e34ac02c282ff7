// SPDX-License-Identifier: Apache-2.0
//
// Gradients of one backward: collects each parameter's into its unit's slot,
// hands full slots to the exchange in an order that does not depend on when
// gradients become ready, and completes what never came with zeros, so that
// every trainable unit is reduced exactly once. A gradient that comes after its
// unit was reduced (reentrant segments) is kept for one more round.
// Thread rule: the caller's lock.
#pragma once

#include <vector>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "exchange/exchange.h"
#include "shard/model_units.h"
#include "shard/slices.h"

namespace sherd::shard {

class Gradients {
 public:
  // All must outlive it. `scale` multiplies every sum over ranks.
  Gradients(
      const ModelUnits& model,
      exchange::Exchange& exchange,
      Slices& slices,
      double scale);

  // The order in which units are reduced, for the next backward; units left
  // out come last. REQUIRES: no gradient has come since the last finish().
  void set_order(const std::vector<UnitId>& order);
  bool started() const { return started_; }

  // Takes the gradient of a parameter (undefined: none was produced) and
  // starts the reductions that became possible.
  Status arrived(int parameter, const at::Tensor& gradient);

  // Completes and starts everything, waits for every rank, agrees on late
  // rounds, and sets the slices' `.grad()`. With a reason in `aborted`, slices
  // have no gradients afterwards, here and on every rank. Returns whether ranks
  // may have different units whole; `departed` says that of this one.
  Result<bool> finish(const std::string& aborted, bool departed);

 private:
  struct UnitState {
    std::vector<at::Tensor> slot;  // Empty: none open.
    std::vector<bool> arrived;     // By trainable parameter, in this slot.
    std::vector<bool> used;
    int missing = 0;
    bool reduced = false;
  };
  struct Target {
    UnitId unit;
    int flat;
    int trainable;
    std::int64_t offset;  // In the flat.
  };

  UnitState& state(UnitId unit) {
    return units_[static_cast<std::size_t>(unit)];
  }
  void open(UnitId unit);
  void reset_arrivals(UnitId unit);
  void fill_missing(UnitId unit);
  void zero_padding(UnitId unit);
  Status reduce(UnitId unit);
  Status reduce_ready();
  Result<bool> all_rounds(const std::string& aborted, bool departed);
  Result<exchange::BackwardOutcome> round(
      const std::string& aborted, bool departed);
  void reset();

  const ModelUnits& model_;
  exchange::Exchange& exchange_;
  Slices& slices_;
  const double scale_;
  std::vector<Target> targets_;              // By parameter.
  std::vector<std::vector<int>> trainable_;  // By unit: parameters.
  std::vector<UnitState> units_;
  std::vector<UnitId> order_;
  std::size_t next_ = 0;  // In order_: the first unit not reduced.
  bool started_ = false;
};

}  // namespace sherd::shard
