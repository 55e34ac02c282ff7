// SPDX-License-Identifier: Apache-2.0
#include "exchange/gradient_chunks.h"

#include <algorithm>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_foreach_copy.h>

namespace sherd::exchange {
namespace {

// `first`: the number of its first parameter.
std::vector<GradientChunk> chunks_of(const FlatSpec& flat, int first) {
  std::vector<GradientChunk> chunks;
  std::int64_t end = 0;
  const auto add = [&](std::int64_t until, int parameter) {
    if (until > end) {
      chunks.push_back({{end, until}, parameter});
      end = until;
    }
  };
  for (int p = 0; p < flat.layout.parameters(); ++p) {
    if (may_bypass_slot(flat, p)) {
      const auto offset = flat.layout.offsets[static_cast<std::size_t>(p)];
      add(offset, -1);
      add(offset + flat.layout.numels[static_cast<std::size_t>(p)], first + p);
    }
  }
  add(flat.layout.numel, -1);
  return chunks;
}

}  // namespace

std::vector<std::vector<GradientChunk>> chunks_of(const UnitSpec& unit) {
  std::vector<std::vector<GradientChunk>> chunks(unit.flats.size());
  int first = 0;
  for (std::size_t f = 0; f < unit.flats.size(); ++f) {
    if (unit.flats[f].trainable) {
      chunks[f] = chunks_of(unit.flats[f], first);
      first += unit.flats[f].layout.parameters();
    }
  }
  return chunks;
}

void copy_gradients(
    const UnitSpec& unit,
    const ReduceOptions& options,
    const std::vector<at::Tensor>& into,
    const std::vector<at::Tensor>& slot) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  int parameter = 0;
  for (std::size_t f = 0; f < unit.flats.size(); ++f) {
    const auto& layout = unit.flats[f].layout;
    std::vector<at::Tensor> from;
    std::vector<at::Tensor> to;
    for (std::size_t p = 0; unit.flats[f].trainable && p < layout.numels.size();
         ++p) {
      auto gradient = options.gradient(parameter++);
      if (!gradient.defined() && !slot.empty()) {
        gradient = slot[f].narrow(0, layout.offsets[p], layout.numels[p]);
      }
      if (gradient.defined()) {
        from.push_back(std::move(gradient));
        to.push_back(into[f].narrow(0, layout.offsets[p], layout.numels[p]));
      }
    }
    if (!to.empty()) {
      at::_foreach_copy_(to, from, /*non_blocking=*/true);
    }
  }
}

plan::ElementRange intersection(
    const plan::ElementRange& a, const plan::ElementRange& b) {
  const auto begin = std::min(std::max(a.begin, b.begin), a.end);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace sherd::exchange
