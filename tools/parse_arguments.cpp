// SPDX-License-Identifier: Apache-2.0
#include "parse_arguments.h"

#include <algorithm>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include "nearest_name.h"
#include "tool_main.h"

namespace sherd::tools {
namespace {

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* option : app.get_options()) {
    for (const auto& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : app.get_subcommands(nullptr)) {
    names.push_back(command->get_name());
  }
  return names;
}

// What is wrong with those words of `app` that CLI11 did not know.
std::string mistake(
    const CLI::App& app,
    const std::vector<std::string>& unknown,
    const CLI::ParseError& error) {
  const auto option = std::find_if(
      unknown.begin(), unknown.end(),
      [](const std::string& word) { return word.starts_with("-"); });
  if (option != unknown.end()) {
    const auto name = option->substr(0, option->find('='));
    return "there is no option " + name + suggestion(name, option_names(app));
  }
  const auto commands = command_names(app);
  if (!unknown.empty() && !commands.empty()) {
    return "there is no command '" + unknown[0] + "'" +
        suggestion(unknown[0], commands);
  }
  return error.what();
}

}  // namespace

std::vector<std::string> words_of(int argc, char** argv) {
  return {argv + std::min(argc, 1), argv + argc};
}

bool parse_arguments(CLI::App& app, std::vector<std::string> words) {
  std::reverse(words.begin(), words.end());  // CLI11 expects this order.
  try {
    app.parse(words);
    return true;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // CLI11 reports --help as an error, too.
      app.exit(error);
      expect_printed();
      return false;
    }
    const CLI::App* parsed = &app;
    std::string name = app.get_name();
    while (!parsed->get_subcommands().empty()) {
      parsed = parsed->get_subcommands().front();
      name += " " + parsed->get_name();
    }
    throw Error(
        mistake(*parsed, app.remaining(/*recurse=*/true), error) + "; see " +
        name + " --help");
  }
}

}  // namespace sherd::tools
