// SPDX-License-Identifier: Apache-2.0
//
// Reducer gives the gradients of one backward to an exchange. It collects the gradients of
// parameters in the slot of their unit or, on devices and for large ones, beside it, passes full
// slots on in an order that does not depend on when gradients become ready, and fills in zeros for gradients that never came, so that every
// trained unit is reduced exactly once. A gradient that comes after its unit was reduced (reentrant
// checkpoints) is kept for one more round. Gradients of backwards that are not reduced (no_sync)
// can wait in full size for the next backward. Thread rule: the caller's lock.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "exchange/exchange.h"
#include "exchange/unit_parameter.h"

namespace sherd::exchange {

// The destination of reduced gradients, which an optimizer sees.
class ReducedGradients {
 public:
  virtual ~ReducedGradients() = default;

  // By flat of the unit: whether its next reduction must add to the gradient that is there.
  virtual std::vector<bool> accumulation(UnitId unit) = 0;
  // As in ReduceOptions::sinks.
  virtual std::vector<ReduceOptions::GradientSink> sinks(UnitId) const {
    return {};
  }
  // Whether an optimizer updates parameters in sinks.
  virtual bool updates_in_backward() const { return false; }
  // As in BackwardEnd::has_hooks.
  virtual bool has_hooks() const { return false; }

  // Called after a round. `used`: by trainable parameter of the unit, whether some rank had a
  // gradient.
  virtual void set_gradients(UnitId unit, const std::vector<bool>& used) = 0;
  // Called if the backward was given up.
  virtual void clear_gradients() = 0;
};

class Reducer {
 public:
  // All must outlive it. `scale` multiplies every sum over ranks; `under_way_max` is that of
  // ReduceOptions.
  Reducer(
      const std::vector<UnitSpec>& units,
      const std::vector<UnitParameter>& parameters,
      Exchange& exchange,
      ReducedGradients& reduced,
      double scale,
      int under_way_max = 0);

  // Sets the order in which units are reduced, from the next backward on; units left out come last,
  // and so do those that finish() finds no longer dormant. REQUIRES: no gradient has come since the
  // last finish().
  void set_order(const std::vector<UnitId>& order);
  // Sets the scale of the next backward's sums. REQUIRES: as for set_order().
  void set_scale(double scale) { scale_ = scale; }
  // Parameters that are frozen by now bring no gradient, so their units do not wait for one, nor
  // for parameters that are marked in `unexpected`. REQUIRES: as for set_order().
  void expect(const std::vector<bool>& unexpected = {});
  // From now on, a unit that no rank used in one backward is reduced in the next only if some rank
  // uses it there; ranks agree on that at the end of backward, in one small message about all such
  // units. REQUIRES: called on every rank, before the first gradient; set_order() and keep() are
  // not used.
  void leave_out_unused() { leaves_out_unused_ = true; }
  // By unit: whether the last finish() left it out.
  const std::vector<bool>& left_out() const { return left_out_; }
  // Makes the next backward's reductions partial (ReduceOptions::partial); `.grad()` stays as it
  // is. REQUIRES: as for set_order().
  void set_partial(bool partial) { partial_ = partial; }
  // What ranks compare at the end of the backward (BackwardEnd::whole_units).
  void set_whole_units(std::uint64_t digest) { whole_units_ = digest; }
  // Whether all parameters of the unit started frozen, and no rank had a gradient of it in the last
  // backward. Such a unit is only reduced after a backward that brings it a gradient on some rank,
  // in a late round.
  bool dormant(UnitId unit) const {
    return dormant_[static_cast<std::size_t>(unit)];
  }
  bool partial() const { return partial_; }
  // Whether some rank had a gradient in the last backward that was finished; the same on all ranks.
  bool any_used() const {
    return std::ranges::find(used_by_any_, true) != used_by_any_.end();
  }
  // Whether some rank had hooks at the end of the last backward.
  bool any_hooks() const { return any_hooks_; }
  // Says that this rank has no gradients in the next backwards, while others have some: it reduces
  // zeros while it assists the others, as their reductions make room. REQUIRES: the same order on
  // all such ranks.
  void set_without_inputs(bool without) { without_inputs_ = without; }
  bool started() const { return started_; }
  // Whether any reduction has begun in this backward.
  bool reducing() const { return next_ > 0; }
  // Whether the unit's reduction has begun in this backward.
  bool reduced(UnitId unit) const {
    return states_[static_cast<std::size_t>(unit)].reduced;
  }

  // Takes the gradient of a parameter (undefined: none was produced) and starts the reductions that
  // have become possible. If not `fresh`, the gradient is summed, but the parameter does not count
  // as used because of it.
  Status arrived(int parameter, const at::Tensor& gradient, bool fresh = true);
  // Whether its gradient has arrived since the last finish().
  bool has_arrived(int parameter) const;

  // Whether the parameter may have a gradient in this backward, on this rank or another: it is not
  // frozen, or a gradient has come, or one may have been kept before it was frozen.
  bool may_have_gradient(int parameter) const;

  // Keeps the gradient, in full size and at least in fp32, for the next backward whose gradients
  // are reduced.
  void keep(int parameter, const at::Tensor& gradient);
  bool keeps(int parameter) const {
    return kept_[static_cast<std::size_t>(parameter)].defined();
  }
  // Drops what was kept for the parameter.
  void drop_kept(int parameter) {
    kept_[static_cast<std::size_t>(parameter)].reset();
  }

  // Ends a backward whose gradients were kept: waits for every rank. With a reason in `aborted`,
  // every rank drops everything it has kept. Otherwise like finish().
  Result<bool> finish_kept(const std::string& aborted, bool departed);

  // Completes and starts all reductions, waits for every rank, agrees on late rounds, and sets the
  // slices' `.grad()`. With a reason in `aborted`, slices have no gradients afterwards and nothing
  // is kept, here and on every rank; after partial reductions their accumulated sums are dropped
  // instead of the slices' gradients. Returns whether ranks may have different units whole;
  // `departed` says whether this rank may.
  Result<bool> finish(const std::string& aborted, bool departed);

 private:
  struct UnitState {
    std::vector<at::Tensor> slot;  // Empty: no slot is open.
    std::vector<bool> arrived;     // By trainable parameter, in this slot.
    std::vector<bool> awaited;
    std::vector<bool> filled;  // Its gradient is in the slot, or elsewhere.
    std::vector<bool> used;
    std::vector<at::Tensor> elsewhere;  // Undefined: it is in the slot.
    int missing = 0;
    bool reduced = false;
    bool wakes = false;  // No longer dormant: needs a late round.
  };
  struct Target {
    UnitId unit;
    int flat;
    bool alone;  // On the CPU, too, its gradient need not lie in the slot.
    int trainable;
    std::int64_t offset;  // In the flat.
  };

  UnitState& state(UnitId unit) {
    return states_[static_cast<std::size_t>(unit)];
  }
  void open(UnitId unit);
  void place(int parameter, const at::Tensor& gradient);
  void add(int parameter, const at::Tensor& dense);
  at::Tensor room(int parameter, at::IntArrayRef sizes);
  void reset_arrivals(UnitId unit);
  void fill_missing(UnitId unit);
  void add_kept(UnitId unit);
  void drop_all_kept();
  void zero_padding(UnitId unit);
  Status reduce(UnitId unit);
  Status reduce_ready();
  bool is_idle(UnitId unit) const {
    return idle_[static_cast<std::size_t>(unit)];
  }
  bool is_used(UnitId unit) const;
  Status reduce_rest();
  Result<std::vector<bool>> ask_who_uses(const std::vector<UnitId>& units);
  Result<bool> all_rounds(const std::string& aborted, bool departed);
  Result<BackwardOutcome> round(
      const std::string& aborted,
      bool departed,
      std::function<Status()> reduce_meanwhile = nullptr);
  void reset();

  const std::vector<UnitSpec>& specs_;
  const std::vector<UnitParameter>& parameters_;
  Exchange& exchange_;
  ReducedGradients& reduced_;
  double scale_;
  const int under_way_max_;
  std::vector<Target> targets_;              // By parameter.
  std::vector<std::vector<int>> trainable_;  // By unit: parameters.
  std::vector<at::Tensor> kept_;             // By parameter; may be undefined.
  // By parameter: since the last finish() a backward was kept in which it was not frozen, so that
  // some rank may keep a gradient of it.
  std::vector<bool> may_be_kept_;
  std::vector<UnitState> states_;
  std::vector<UnitId> order_;
  std::size_t next_ = 0;  // The index in order_ of the next unit to reduce.
  bool started_ = false;
  bool partial_ = false;
  std::uint64_t whole_units_ = 0;
  bool any_hooks_ = false;
  bool leaves_out_unused_ = false;
  bool without_inputs_ = false;
  // By unit: no rank used it in the last backward. Idle units come last in order_.
  std::vector<bool> idle_;
  std::vector<bool> used_by_any_;  // In this backward, once ranks have told.
  std::vector<bool> left_out_;
  std::vector<bool> starts_frozen_;  // By unit: whether all of it does.
  std::vector<bool> dormant_;
};

}  // namespace sherd::exchange
