// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/activation_checkpointing.h>

#include "autograd/backward.h"
#include "fsdp/checkpoint_regions.h"
#include "fsdp/unit_modules.h"

namespace sherd {

using plan::MemoryMoment;

ActivationCheckpointing::ActivationCheckpointing(
    const torch::nn::Module& model,
    const units::Policy& policy,
    const CheckpointOptions& options)
    : regions_(std::make_shared<fsdp::CheckpointRegions>()), options_(options) {
  for (auto& found : fsdp::unit_modules(model, policy)) {
    if (found.options.own_unit) {
      regions_->take(found.module, std::move(found.name));
    }
  }
}

bool ActivationCheckpointing::takes(const torch::nn::Module& module) const {
  return regions_->number_of(&module) >= 0;
}

const std::vector<std::string>& ActivationCheckpointing::names() const {
  return regions_->names();
}

ActivationCheckpointing::Region ActivationCheckpointing::region_of(
    const torch::nn::Module& module) const {
  const int number = regions_->number_of(&module);
  if (number < 0 || regions_->keeps(number)) {
    return {};
  }
  // A forward without gradients keeps nothing in any case.
  return {
      .number = number,
      .runs_again = true,
      .recorder =
          autograd::records_gradients() ? regions_->recorder() : nullptr};
}

ActivationCheckpointing::Run::Run(const Region& region)
    : region_(region),
      again_(autograd::in_backward()),
      taken_(region.recorder->begin_region(
          region.number,
          again_ ? MemoryMoment::kAgainBegins : MemoryMoment::kForwardBegins)) {
}

ActivationCheckpointing::Run::~Run() {
  if (taken_) {
    region_.recorder->end_region(
        region_.number,
        again_ ? MemoryMoment::kAgainEnds : MemoryMoment::kForwardEnds);
  }
}

}  // namespace sherd
