// SPDX-License-Identifier: Apache-2.0
#include "exchange/exchange.h"

#include <algorithm>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include "plan/arithmetic.h"

namespace sherd::exchange {
namespace {

constexpr std::int64_t kFlatAlignment = 128;
// About where copying costs as much as a message does.
constexpr std::int64_t kAloneBytes = 64 * 1024;

std::int64_t bytes_as(const FlatSpec& flat, c10::ScalarType dtype) {
  return flat.layout.numel * static_cast<std::int64_t>(c10::elementSize(dtype));
}

// What differs from the dtype of shards.
std::string describe_precision(const FlatSpec& flat) {
  std::string text;
  if (flat.param_dtype) {
    text += str(" gathered as ", c10::toString(*flat.param_dtype));
  }
  if (flat.reduce_dtype) {
    text += str(" reduced as ", c10::toString(*flat.reduce_dtype));
  }
  if (flat.narrow_gradients) {
    text += " and kept so";
  }
  return text;
}

std::string describe_cuts(const UnitSpec& unit, const FlatSpec& flat) {
  std::string text = str("unit ", unit.name, " cut at [");
  for (std::size_t r = 0; r < flat.layout.cuts.size(); ++r) {
    text += str(r == 0 ? "" : ", ", flat.layout.cuts[r]);
  }
  return text + "] elements";
}

}  // namespace

std::int64_t flat_bytes(const FlatSpec& flat) {
  return bytes_as(flat, flat.unsharded_dtype());
}

std::vector<std::int64_t> flat_offsets(const UnitSpec& unit, FlatDtype dtype) {
  std::vector<std::int64_t> offsets = {0};
  for (const auto& flat : unit.flats) {
    offsets.push_back(
        offsets.back() +
        plan::round_up(bytes_as(flat, (flat.*dtype)()), kFlatAlignment));
  }
  return offsets;
}

std::int64_t unit_bytes(const UnitSpec& unit) {
  return flat_offsets(unit, &FlatSpec::unsharded_dtype).back();
}

plan::ElementRange owned(
    const ModelSpec& model, UnitId unit, int flat, int rank) {
  const auto& layout =
      model.unit(unit).flats[static_cast<std::size_t>(flat)].layout;
  return model.replicates() ? plan::ElementRange{0, layout.numel}
                            : layout.shard(rank);
}

bool is_cast(const UnitSpec& unit) {
  return std::ranges::any_of(unit.flats, [](const FlatSpec& flat) {
    return flat.is_cast() || flat.coded;
  });
}

bool starts_frozen(const UnitSpec& unit) {
  return std::ranges::all_of(
      unit.flats, [](const FlatSpec& flat) { return flat.starts_frozen; });
}

std::size_t trainable_parameters(const UnitSpec& unit) {
  std::size_t count = 0;
  for (const auto& flat : unit.flats) {
    count += flat.trainable ? flat.names.size() : 0;
  }
  return count;
}

bool may_bypass_slot(const FlatSpec& flat, int parameter) {
  return flat.layout.numels.at(static_cast<std::size_t>(parameter)) *
      static_cast<std::int64_t>(c10::elementSize(flat.slot_dtype())) >=
      kAloneBytes;
}

Result<std::vector<double>> all_reduce(
    Exchange& exchange, std::vector<double> values, ScalarReduceOp op) {
  SHERD_RETURN_IF_FAILED(exchange.all_reduce(
      at::from_blob(
          values.data(), {std::ssize(values)}, c10::ScalarType::Double),
      op));
  return values;
}

std::vector<std::string> describe(const ModelSpec& model) {
  std::vector<std::string> lines;
  for (const auto& unit : model.units) {
    for (const auto& flat : unit.flats) {
      for (std::size_t i = 0; i < flat.names.size(); ++i) {
        lines.push_back(
            str("parameter ", flat.names[i], " ", flat.shapes[i], " ",
                c10::toString(flat.dtype), describe_precision(flat),
                flat.trainable && !flat.starts_frozen ? "" : " frozen",
                " of unit ", unit.name));
      }
    }
  }
  // Stands beside the first parameter that other ranks have in addition.
  lines.push_back(str(lines.size(), " parameters and no more"));
  lines.push_back(
      str("placement ",
          model.placement == ModelPlacement::kShard ? "shard" : "replicate",
          model.own_shards ? "" : " of no shards",
          model.own_gradients ? "" : " of no gradients",
          model.share_gradients ? " of shared gradients" : "", ", budget ",
          model.unsharded_bytes_max, " bytes"));
  // Last: what differs in anything else has other cuts too.
  for (const auto& unit : model.units) {
    for (const auto& flat : unit.flats) {
      lines.push_back(describe_cuts(unit, flat));
    }
  }
  lines.insert(lines.end(), model.agreed.begin(), model.agreed.end());
  return lines;
}

}  // namespace sherd::exchange
