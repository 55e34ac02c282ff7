// SPDX-License-Identifier: Apache-2.0
//
// FullPrecisionUnits keeps units gathered in the precision of their shards while operators use
// them, for as long as a FullPrecisionScope lives: on demand, within a byte budget, dropping the
// least recently used. If operators otherwise use another dtype, they are shown the gathered values
// instead, and a raw pointer finds nothing. Thread rule: the engine's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include "fsdp/model_units.h"
#include "fsdp/unit_cache.h"
#include "plan/residency.h"

namespace sherd::fsdp {

class FullPrecisionUnits {
 public:
  // Both must outlive it.
  FullPrecisionUnits(const ModelUnits& model, UnitCache& cache)
      : model_(model), cache_(cache) {}

  bool open() const { return residency_.has_value(); }

  // Drops what is whole in the cache, which is not used until end(). Called on all ranks with the
  // same budget, in bytes.
  void begin(const plan::Budget& budget);
  // Makes the units whole, and pins them. Collective, as gathers are. Throws Error on every rank if
  // they do not fit a budget that is final.
  void visit(const UnitCache::Visit& units);
  // REQUIRES: visit() has pinned it, since begin().
  void unpin(UnitId unit) { residency_->unpin(unit); }
  // Drops all, pinned or not. Never waits. Nothing if not open().
  void end();

  // The most bytes that were whole at once.
  std::int64_t resident_bytes_peak() const { return resident_bytes_peak_; }

 private:
  void gather(UnitId unit);
  void drop(UnitId unit);
  std::int64_t limit_of_cache(UnitId unit);

  const ModelUnits& model_;
  UnitCache& cache_;
  std::optional<plan::Residency> residency_;  // While open.
  std::set<UnitId> whole_;
  std::int64_t resident_bytes_peak_ = 0;
};

// Whether a scope in full precision changes what operators see of the model.
bool has_other_values_in_full_precision(const ModelUnits& model);

}  // namespace sherd::fsdp
