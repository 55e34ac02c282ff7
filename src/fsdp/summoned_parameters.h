// SPDX-License-Identifier: Apache-2.0
//
// SummonedParameters holds this rank's private full copies of all parameters while a SummonScope
// lives, shows them to the module, and copies what was written back into the shards. The copies are
// outside the byte budget. Thread rule: the engine's lock. What is copied back:
// docs/design/runtime.md.
#pragma once

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

  bool open() const { return !full_.empty(); }
  bool may_write() const { return open() && !read_only_; }

  // Collective. Every parameter is whole from here to end().
  void begin(bool read_only);
  // The copy in full precision. Throws when there is no such name.
  at::Tensor tensor(const std::string& name) const;
  // Writes changes to the shards and empties the parameters.
  void end();

 private:
  using Copies = std::vector<std::vector<at::Tensor>>;  // By unit, by flat.

  void copy_unit(UnitId unit);
  at::Tensor part_of(
      const Copies& copies, const ManagedParameter& parameter) const;
  void take_back(int parameter);

  const ModelUnits& model_;
  UnitCache& cache_;
  Slices& slices_;
  Copies full_;
  Copies shown_;  // What the module shows: the same tensors, or casts.
  bool read_only_ = false;
};

}  // namespace sherd::fsdp
