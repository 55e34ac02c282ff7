// SPDX-License-Identifier: Apache-2.0
//
// The flags of `sherd train` as CLI11 knows them, made from the option table.
// Thread rule: one thread.
#pragma once

#include <map>
#include <string>
#include <CLI/App.hpp>

namespace sherd::tools {

// What the user wrote, by option name; options that were not given are absent.
struct CommandLine {
  std::map<std::string, std::string> flags;
  std::string config_path;
  bool plan = false;  // Print what would be trained, and exit.
};

// Adds description, options and examples. `line` is filled when `app` parses
// and must live until then.
void add_train_options(CLI::App& app, CommandLine& line);

}  // namespace sherd::tools
