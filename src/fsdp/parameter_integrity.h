// SPDX-License-Identifier: Apache-2.0
//
// Checks parameters for changes that no operator announces: module->to(), set_data() and
// vector_to_parameters() give a parameter another storage without the key, so that it silently
// leaves its unit; requires_grad_() changes what backward produces, and must be called on all ranks.
// A check costs about 5 ns per parameter. Thread rule: the caller's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>
#include <torch/nn/module.h>
#include "autograd/managed_storage.h"
#include "fsdp/model_units.h"

namespace sherd::fsdp {

using Storages =
    std::vector<std::vector<std::unique_ptr<autograd::ManagedStorage>>>;

// Throws Error if a parameter has another storage; names the first one, and the remedy.
void check_storages(const ModelUnits& model, const Storages& storages);
// Throws Error unless what the parameter has in another storage fits into its own.
void check_replacement(
    const ModelUnits& model, const ManagedParameter& parameter);
// Throws Error if a trained parameter shares elements with another parameter or a buffer, from which
// sharding would part it.
void check_no_shared_elements(
    const torch::nn::Module& module, const ModelUnits& model);
// A digest of requires_grad of all parameters, for ranks to compare.
std::uint64_t flags_fingerprint(const ModelUnits& model);
// Throws Error if a parameter requires gradients now but cannot have them; names the first one.
void check_can_train(const ModelUnits& model);

}  // namespace sherd::fsdp
