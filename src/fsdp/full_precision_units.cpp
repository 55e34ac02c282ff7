// SPDX-License-Identifier: Apache-2.0
#include "fsdp/full_precision_units.h"

#include <algorithm>

#include "base/log.h"
#include "device/memory.h"

namespace sherd::fsdp {
namespace {

std::int64_t full_bytes(const exchange::UnitSpec& unit) {
  return exchange::flat_offsets(unit, &exchange::FlatSpec::shard_dtype).back();
}

}  // namespace

bool has_other_values_in_full_precision(const ModelUnits& model) {
  return std::ranges::any_of(model.units, exchange::is_cast);
}

void FullPrecisionUnits::begin(const plan::Budget& budget) {
  std::vector<std::int64_t> bytes;
  for (const auto& unit : model_.units) {
    bytes.push_back(full_bytes(unit));
  }
  cache_.release_all();
  residency_.emplace(std::move(bytes), budget);
}

void FullPrecisionUnits::visit(const UnitCache::Visit& units) {
  auto decision = residency_->visit(units);
  decision.status().throw_if_failed();
  const auto& now = decision.value();
  for (const auto unit : now.evict) {
    drop(unit);
  }
  if (now.grown_budget_bytes) {
    log_info("[fsdp] in full precision: " + now.reason);
  }
  for (const auto unit : now.fetch) {
    gather(unit);
  }
  for (const auto unit : units) {
    residency_->pin(unit);
  }
  resident_bytes_peak_ =
      std::max(resident_bytes_peak_, residency_->resident_bytes());
}

// Units that are not cast lie in the exchange's slots, of which it keeps as many bytes as this says;
// the others lie beside them. 0: no limit.
std::int64_t FullPrecisionUnits::limit_of_cache(UnitId gathered) {
  const auto budget = residency_->budget().bytes;
  if (!budget) {
    return 0;
  }
  auto cast_bytes = std::int64_t{0};
  for (UnitId unit = 0; unit < residency_->units(); ++unit) {
    const auto& spec = model_.unit(unit);
    if ((whole_.contains(unit) || unit == gathered) &&
        exchange::is_cast(spec)) {
      cast_bytes += full_bytes(spec);
    }
  }
  return std::max<std::int64_t>(*budget - cast_bytes, 1);
}

void FullPrecisionUnits::gather(UnitId unit) {
  const auto addresses = cache_.fetch(unit, limit_of_cache(unit));
  whole_.insert(unit);
  const auto& flats = model_.unit(unit).flats;
  const auto& storages = cache_.storages()[static_cast<std::size_t>(unit)];
  for (std::size_t f = 0; f < flats.size(); ++f) {
    if (flats[f].is_cast()) {
      storages[f]->show_instead(device::tensor_at(
          addresses[f], flats[f].layout.numel,
          at::device(model_.device).dtype(flats[f].dtype)));
    } else {
      storages[f]->fill(addresses[f]);
    }
  }
}

void FullPrecisionUnits::drop(UnitId unit) {
  if (whole_.erase(unit) == 0) {
    return;  // Its gather has failed.
  }
  for (const auto& storage :
       cache_.storages()[static_cast<std::size_t>(unit)]) {
    storage->show_instead({});
  }
  cache_.empty(unit);
  cache_.drop_fetched(unit);
}

void FullPrecisionUnits::end() {
  if (!open()) {
    return;
  }
  for (UnitId unit = 0; unit < residency_->units(); ++unit) {
    drop(unit);
  }
  residency_.reset();
  cache_.note_slots_kept();
}

}  // namespace sherd::fsdp
