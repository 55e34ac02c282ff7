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

// Where a rank trains. Makes a GPU the thread's current one. Throws Error if --device names one
// that this rank does not have.
at::Device device_of(const TrainConfig& config, const World& world);

// Created on the meta device, where reset_parameter() knows the values; if it is to be replicated,
// on the CPU; if it trains on another device, on that. REQUIRES: make_config() accepted the
// configuration.
std::shared_ptr<models::LanguageModel> make_model(
    const TrainConfig& config,
    std::int64_t vocabulary,
    at::Device device = at::kCPU);

// The number of parameters with which each token is multiplied: all except tables in which rows are
// only looked up; a table that is also the head counts.
std::int64_t multiplied_parameters(const models::LanguageModel& model);

}  // namespace sherd::tools
