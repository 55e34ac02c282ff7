// SPDX-License-Identifier: Apache-2.0
#include "fsdp/summoned_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

namespace sherd::fsdp {
namespace {

constexpr int kTag = 0;  // Messages between two ranks keep their order.

}  // namespace

SummonedGradients::SummonedGradients(
    const ModelUnits& model, Slices& slices, const Options& options)
    : model_(model),
      slices_(slices),
      full_(model.parameters.size()),
      before_(model.parameters.size()),
      had_gradient_(model.parameters.size()) {
  const at::NoGradGuard no_grad;
  for (const int parameter : options.parameters) {
    const auto p = static_cast<std::size_t>(parameter);
    had_gradient_[p] = slices_.slice_has_gradient(parameter);
    const auto whole = gather(parameter, options);
    if (!whole.defined()) {
      continue;
    }
    full_[p] = whole.to(model_.device)
                   .view(model_.parameter(parameter).tensor.sizes());
    const auto mine = slices_.part_of(parameter, full_[p]);
    if (options.writable && mine.defined()) {
      before_[p] = mine.clone();
    }
  }
}

// Undefined on a rank that does not keep it.
at::Tensor SummonedGradients::gather(int parameter, const Options& options) {
  const auto& managed = model_.parameter(parameter);
  const auto& flat = model_.flat_of(managed);
  const auto keeps = [&](int index) {
    return !options.rank0_only || options.via->world_rank(index) == 0;
  };
  const auto range_of = [&](int index) {
    return plan::parameter_slice(
               flat.layout, managed.position, options.slice_of(index))
        .in_parameter;
  };
  // A slice without a gradient where others have one counts as zeros.
  const auto mine = slices_.gradient_of(parameter);
  if (options.via == nullptr) {
    return options.keep && mine.defined() ? mine.clone() : at::Tensor();
  }
  const int me = options.via->index();
  at::Tensor whole;
  world::Transfers transfers;
  if (options.keep) {
    whole = at::zeros({managed.tensor.numel()}, flat.gradient_dtype());
  }
  for (int other = 0; other < options.via->size(); ++other) {
    const auto range = range_of(other);
    if (whole.defined() && !range.empty()) {
      const auto part = whole.narrow(0, range.begin, range.numel());
      if (other == me) {
        part.copy_(mine);
      } else {
        transfers.push_back(options.via->receive(part, other, kTag));
      }
    }
    if (other != me && keeps(other) && mine.defined()) {
      transfers.push_back(options.via->send(mine, other, kTag));
    }
  }
  wait_all(transfers, "the whole gradient of " + managed.name)
      .throw_if_failed();
  return whole;
}

void SummonedGradients::take_back() {
  for (std::size_t p = 0; p < full_.size(); ++p) {
    const int parameter = static_cast<int>(p);
    const bool cleared =
        had_gradient_[p] && !slices_.slice_has_gradient(parameter);
    if (before_[p].defined() && !cleared) {
      slices_.copy_changed_gradient(
          parameter, slices_.part_of(parameter, full_[p]), before_[p]);
    }
  }
}

}  // namespace sherd::fsdp
