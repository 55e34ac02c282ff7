// SPDX-License-Identifier: Apache-2.0
//
// The program `sherd-bench`, which `sherd bench` executes.
#include <CLI/CLI.hpp>
#include <sherd/base/run_main.h>
#include "bench/command.h"
#include "parse_arguments.h"

namespace sherd::bench {
namespace {

constexpr int kUsageError = 2;

int run_command(int argc, char** argv) {
  CLI::App app("Compare speed and memory with others", "sherd bench");
  app.require_subcommand(1);
  const BenchCommand commands[] = {
      add_step(app), add_collectives(app), add_faults(app)};
  if (!tools::parse_arguments(app, tools::words_of(argc, argv))) {
    return 0;
  }
  for (const BenchCommand& command : commands) {
    if (command.app->parsed()) {
      return command.run();
    }
  }
  return kUsageError;  // Not reached: a subcommand is required.
}

}  // namespace
}  // namespace sherd::bench

int main(int argc, char** argv) {
  return sherd::run_main(
      argc, argv, [&] { return sherd::bench::run_command(argc, argv); });
}
