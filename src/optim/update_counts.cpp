// SPDX-License-Identifier: Apache-2.0
#include "optim/update_counts.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

namespace sherd::optim {
namespace {

// Limits the memory where every step updates other slices.
constexpr std::size_t kIncrementsMax = 8;

}  // namespace

UpdateCounts::UpdateCounts(const std::vector<c10::Device>& devices)
    : counts_(
          at::zeros({static_cast<std::int64_t>(devices.size())}, at::kFloat)),
      positions_(devices.size()) {
  for (std::size_t slice = 0; slice < devices.size(); ++slice) {
    if (devices[slice].is_cpu()) {
      continue;
    }
    auto copy = std::ranges::find(copies_, devices[slice], &Copy::device);
    if (copy == copies_.end()) {
      copy = copies_.insert(copies_.end(), Copy{.device = devices[slice]});
    }
    positions_[slice] = {
        .copy = static_cast<std::size_t>(copy - copies_.begin()),
        .at = copy->slices.size()};
    copy->slices.push_back(slice);
  }
}

void UpdateCounts::count(const std::vector<std::size_t>& slices) {
  std::vector<std::vector<std::size_t>> on(copies_.size());
  for (const auto slice : slices) {
    if (positions_[slice]) {
      on[positions_[slice]->copy].push_back(positions_[slice]->at);
    } else {
      value(slice) += 1;
    }
  }
  for (std::size_t c = 0; c < copies_.size(); ++c) {
    if (!on[c].empty()) {
      add(copies_[c], on[c]);
    }
  }
}

// If these are the slices of the step before, it costs no copy, and one kernel unless many other
// sets came before them.
void UpdateCounts::add(Copy& copy, const std::vector<std::size_t>& slices) {
  if (slices != copy.counted) {
    // Replayed steps have counted other slices than this step does.
    fetch(copy);
    copy.counted = slices;
  }
  bring_up_to_date(copy);
  if (const auto ones = increments(copy, slices); ones.defined()) {
    copy.counts.add_(ones);
  } else {
    std::vector<at::Tensor> each;
    for (const auto at : slices) {
      each.push_back(copy.counts.select(0, static_cast<std::int64_t>(at)));
    }
    at::_foreach_add_(each, 1);
  }
  for (const auto at : slices) {
    copy.known[at] = value(copy.slices[at]) += 1;
  }
}

// Undefined if there are too many other sets. None of those gives way, because graphs may refer to
// it.
at::Tensor UpdateCounts::increments(
    Copy& copy, const std::vector<std::size_t>& slices) {
  const auto found =
      std::ranges::find(copy.increments, slices, &Increments::slices);
  if (found != copy.increments.end()) {
    return found->ones;
  }
  if (copy.increments.size() == kIncrementsMax) {
    return {};
  }
  std::vector<float> ones(copy.slices.size(), 0);
  for (const auto at : slices) {
    ones[at] = 1;
  }
  copy.increments.push_back({slices, at::tensor(ones).to(copy.device)});
  return copy.increments.back().ones;
}

void UpdateCounts::count_one(std::size_t slice) {
  if (!positions_[slice]) {
    value(slice) += 1;
    return;
  }
  const auto at = positions_[slice]->at;
  auto& copy = copies_[positions_[slice]->copy];
  bring_up_to_date(copy);
  copy.counts.select(0, static_cast<std::int64_t>(at)).add_(1);
  copy.known[at] = value(slice) += 1;
}

void UpdateCounts::bring_up_to_date(Copy& copy) {
  std::vector<float> now;
  for (const auto slice : copy.slices) {
    now.push_back(value(slice));
  }
  if (now == copy.known) {
    return;
  }
  const auto written = at::tensor(now);
  if (copy.counts.defined()) {
    copy.counts.copy_(written);  // In place, because a graph may refer to it.
  } else {
    copy.counts = written.to(copy.device);
  }
  copy.known = std::move(now);
}

void UpdateCounts::fetch(Copy& copy) {
  if (!copy.counts.defined()) {
    return;
  }
  const auto counted = copy.counts.cpu();
  for (std::size_t at = 0; at < copy.slices.size(); ++at) {
    auto& here = value(copy.slices[at]);
    if (here == copy.known[at]) {
      here = copy.known[at] = counted.const_data_ptr<float>()[at];
    }
  }
}

at::Tensor UpdateCounts::for_kernel(std::size_t slice) const {
  const auto& position = positions_[slice];
  return position ? copies_[position->copy].counts.select(
                        0, static_cast<std::int64_t>(position->at))
                  : counts_.select(0, static_cast<std::int64_t>(slice));
}

at::Tensor UpdateCounts::on_host(std::size_t slice) {
  if (positions_[slice]) {
    fetch(copies_[positions_[slice]->copy]);
  }
  return counts_.select(0, static_cast<std::int64_t>(slice));
}

}  // namespace sherd::optim
