// SPDX-License-Identifier: Apache-2.0
//
// The flags that `sherd generate` and `sherd eval` share. Thread rule: one thread.
#pragma once

#include <string>
#include <CLI/App.hpp>
#include <c10/core/ScalarType.h>
#include "generate/model_source.h"

namespace sherd::tools {

struct ModelFlags {
  std::string from;
  std::string weights = kModelWeights;
  std::string dtype = "fp32";
  bool json = false;
};

// `flags` is filled when `app` parses, and must live until then.
void add_model_flags(CLI::App& app, ModelFlags& flags);

// Throws Error for any other name than the two.
at::ScalarType dtype_of(const ModelFlags& flags);

}  // namespace sherd::tools
