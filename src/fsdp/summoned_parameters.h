// SPDX-License-Identifier: Apache-2.0
//
// SummonedParameters holds this rank's private full copies of units while a SummonScope lives,
// shows them to the module, and copies changes back into the shards. The copies are outside the
// byte budget. Thread rule: the engine's lock. What is copied back: docs/design/runtime.md.
#pragma once

#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "fsdp/model_units.h"
#include "fsdp/slices.h"
#include "fsdp/unit_cache.h"

namespace sherd::fsdp {

class SummonedParameters {
 public:
  // All must outlive it.
  SummonedParameters(const ModelUnits& model, UnitCache& cache, Slices& slices)
      : model_(model), cache_(cache), slices_(slices) {}

  bool open() const { return options_.has_value(); }
  // Whether the scope has a copy of the unit on this rank.
  bool has(UnitId unit) const {
    return open() && !full_[static_cast<std::size_t>(unit)].empty();
  }
  bool may_write() const { return open() && !options_->read_only; }
  bool full_precision() const { return open() && options_->full_precision; }

  // Collective. The units are whole from here to end(), on the ranks that keep them.
  void begin(
      const SummonOptions& options,
      const std::vector<UnitId>& units,
      bool keep);
  // The parameter of that name. Throws if there is none, or if the scope has no copy of it on this
  // rank.
  const ManagedParameter& parameter(const std::string& name) const;
  // The copy in full precision. Throws in the same cases.
  at::Tensor tensor(const std::string& name) const;
  // Writes changes to the shards and empties the parameters. Throws if a parameter has other memory
  // that cannot be taken back.
  void end();

 private:
  // By unit, by flat; empty for units that stay sharded.
  using Copies = std::vector<std::vector<at::Tensor>>;

  void copy_unit(UnitId unit, bool keep);
  // Makes operators use the copies in full precision, or stops that.
  void show_full(bool full);
  at::Tensor part_of(
      const Copies& copies, const ManagedParameter& parameter) const;
  void take_back(int parameter);
  // torch::load() and set_data() write no copy, but give a parameter other memory: copies what is
  // there, and gives the parameter its own again.
  void take_back_replaced(const ManagedParameter& parameter);

  const ModelUnits& model_;
  UnitCache& cache_;
  Slices& slices_;
  Copies full_;
  Copies shown_;  // What the module shows: the same tensors, or casts.
  std::optional<SummonOptions> options_;  // While open.
};

}  // namespace sherd::fsdp
