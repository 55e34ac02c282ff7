// SPDX-License-Identifier: Apache-2.0
#include "exchange/exchange.h"

#include <c10/core/ScalarType.h>

namespace sherd::exchange {
namespace {

constexpr std::int64_t kFlatAlignment = 128;
// About where copying costs as much as a message does.
constexpr std::int64_t kAloneBytes = 64 * 1024;

std::int64_t round_up(std::int64_t bytes) {
  return (bytes + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
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
  return flat.layout.numel *
      static_cast<std::int64_t>(c10::elementSize(flat.dtype));
}

std::vector<std::int64_t> flat_offsets(const UnitSpec& unit) {
  std::vector<std::int64_t> offsets;
  std::int64_t end = 0;
  for (const auto& flat : unit.flats) {
    offsets.push_back(end);
    end += round_up(flat_bytes(flat));
  }
  return offsets;
}

std::int64_t unit_bytes(const UnitSpec& unit) {
  std::int64_t bytes = 0;
  for (const auto& flat : unit.flats) {
    bytes += round_up(flat_bytes(flat));
  }
  return bytes;
}

bool travels_alone(const FlatSpec& flat, int parameter) {
  return flat.layout.numels.at(static_cast<std::size_t>(parameter)) *
      static_cast<std::int64_t>(c10::elementSize(flat.dtype)) >=
      kAloneBytes;
}

std::vector<std::string> describe(const ModelSpec& model) {
  std::vector<std::string> lines;
  for (const auto& unit : model.units) {
    for (const auto& flat : unit.flats) {
      for (std::size_t i = 0; i < flat.names.size(); ++i) {
        lines.push_back(
            str("parameter ", flat.names[i], " ", flat.shapes[i], " ",
                c10::toString(flat.dtype), flat.trainable ? "" : " frozen",
                " of unit ", unit.name));
      }
    }
  }
  lines.push_back(
      str("placement ",
          model.placement == Placement::kShard ? "shard" : "replicate",
          ", budget ", model.unsharded_bytes_max, " bytes"));
  // Last: what differs in anything else has other cuts too.
  for (const auto& unit : model.units) {
    for (const auto& flat : unit.flats) {
      lines.push_back(describe_cuts(unit, flat));
    }
  }
  return lines;
}

}  // namespace sherd::exchange
