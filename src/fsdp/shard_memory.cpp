// SPDX-License-Identifier: Apache-2.0
#include "fsdp/shard_memory.h"

namespace sherd::fsdp {

std::int64_t shard_bytes(
    const ModelUnits& model, exchange::Exchange& exchange) {
  std::int64_t bytes = 0;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
      const auto memory =
          exchange.shard_memory(static_cast<UnitId>(u), static_cast<int>(f));
      const auto& flat = model.units[u].flats[f];
      const std::size_t copies = memory.gradient.defined() ? 2 : 1;
      const auto cast_bytes =
          flat.is_cast() ? c10::elementSize(flat.unsharded_dtype()) : 0;
      bytes += static_cast<std::int64_t>(
          memory.shard.nbytes() * copies +
          static_cast<std::size_t>(memory.shard.numel()) * cast_bytes);
    }
  }
  return bytes;
}

bool gradients_are_shared(
    const ModelUnits& model, exchange::Exchange& exchange) {
  bool all = true;
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
      all = all &&
          (!model.units[u].flats[f].trainable ||
           exchange.shard_memory(static_cast<UnitId>(u), static_cast<int>(f))
               .whole_gradient.defined());
    }
  }
  return all;
}

std::vector<WholeParameter> whole_parameters(
    const ModelUnits& model,
    exchange::Exchange& exchange,
    const Slices& slices) {
  std::vector<WholeParameter> whole;
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const auto& parameter = model.parameters[p];
    if (parameter.tensor.numel() == 0) {
      continue;
    }
    auto& item = whole.emplace_back();
    item.name = parameter.name;
    item.shape = parameter.tensor.sizes().vec();
    item.slice_begin = slices.begin_of(static_cast<int>(p));
    const auto flat =
        exchange.shard_memory(parameter.unit, parameter.flat).whole_gradient;
    if (flat.defined()) {
      const auto& layout = model.units[static_cast<std::size_t>(parameter.unit)]
                               .flats[static_cast<std::size_t>(parameter.flat)]
                               .layout;
      const auto position = static_cast<std::size_t>(parameter.position);
      item.gradient =
          flat.narrow(0, layout.offsets[position], layout.numels[position])
              .view(item.shape);
    }
  }
  return whole;
}

}  // namespace sherd::fsdp
