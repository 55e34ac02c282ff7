// SPDX-License-Identifier: Apache-2.0
//
// The model that `sherd train --model NAME` trains. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <sherd/models/language_model.h>
#include <sherd/world/world.h>
#include "train/config.h"

namespace sherd::tools {

// Where a rank trains. Makes a GPU the thread's current one. Throws Error where --device names one that
// this rank does not have.
at::Device device_of(const TrainConfig& config, const World& world);

// On the meta device, where reset_parameter() knows the values; to be replicated,
// on the CPU; on any other device on that. REQUIRES: a configuration that make_config() accepted.
std::shared_ptr<models::LanguageModel> make_model(
    const TrainConfig& config,
    std::int64_t vocabulary,
    at::Device device = at::kCPU);

// The parameters that each token is multiplied with: all but tables from which
// rows are looked up, and such a table too where it is the head as well.
std::int64_t multiplied_parameters(const models::LanguageModel& model);

}  // namespace sherd::tools
