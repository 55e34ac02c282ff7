// SPDX-License-Identifier: Apache-2.0
//
// The model that `sherd train --model NAME` trains. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <sherd/models/language_model.h>
#include "train/config.h"

namespace sherd::tools {

// On the meta device, where reset_parameter() knows the values; to be replicated,
// on the CPU. REQUIRES: a configuration that make_config() accepted.
std::shared_ptr<models::LanguageModel> make_model(
    const TrainConfig& config, std::int64_t vocabulary);

}  // namespace sherd::tools
