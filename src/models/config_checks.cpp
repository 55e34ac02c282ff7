// SPDX-License-Identifier: Apache-2.0
#include "models/config_checks.h"

namespace sherd::models {

void check_ids(const at::Tensor& ids, std::int64_t positions_max) {
  expect(
      ids.dim() == 2, "token ids of two dimensions, [rows, positions]",
      "dimensions", ids.dim());
  expect(
      ids.size(1) <= positions_max, "no more positions than the model has",
      "positions", ids.size(1));
}

void check_decoding(
    const at::Tensor& ids, const KeyValueCache& cache, std::int64_t layers) {
  expect(
      static_cast<std::int64_t>(cache.size()) == layers,
      "a cache that make_cache() made for this model", "layers", cache.size());
  const auto& first = cache.front();
  check_ids(ids, first.positions_max() - first.positions());
  expect(ids.size(1) >= 1, "at least 1 token", "positions", ids.size(1));
  expect(
      first.positions() == 0 || ids.size(0) == first.rows(),
      "as many rows as the cache has", "rows", ids.size(0), "cached rows",
      first.rows());
}

}  // namespace sherd::models
