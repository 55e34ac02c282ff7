// SPDX-License-Identifier: Apache-2.0
//
// Options whose help names the kind of their value. Thread rule: one thread.
#pragma once

#include <CLI/CLI.hpp>

namespace sherd::tools {

// Adds options to `app`: their names, where the value goes, what stands for it in the help, and what
// it is.
inline auto option_adder(CLI::App* app) {
  return [app](
             const char* name, auto& value, const char* type,
             const char* description) {
    return app->add_option(name, value, description)->type_name(type);
  };
}

}  // namespace sherd::tools
