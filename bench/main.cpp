// SPDX-License-Identifier: Apache-2.0
//
// The program `sherd-bench`, which `sherd bench` executes. Errors and exit statuses are those of
// `sherd` (tools/main.cpp), because users see one command.
#include <cstdio>
#include <exception>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include "bench/command.h"

namespace sherd::bench {
namespace {

constexpr int kUsageError = 2;

int run_command(int argc, char** argv) {
  CLI::App app("Compare speed and memory with others", "sherd bench");
  app.require_subcommand(1);
  const BenchCommand commands[] = {
      add_step(app), add_collectives(app), add_faults(app)};
  try {
    app.parse(argc, argv);
    for (const BenchCommand& command : commands) {
      if (command.app->parsed()) {
        return command.run();
      }
    }
    return kUsageError;  // Not reached: a subcommand is required.
  } catch (const CLI::ParseError& error) {
    // 0 for --help, which CLI11 reports as an error too.
    return app.exit(error) == 0 ? 0 : kUsageError;
  } catch (const Error& error) {
    std::fprintf(stderr, "sherd: error: %s\n", error.what());
    return error.code() == ErrorCode::kInvalidArgument ? kUsageError : 1;
  }
}

}  // namespace
}  // namespace sherd::bench

int main(int argc, char** argv) {
  try {
    return sherd::bench::run_command(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sherd: error: %s\n", error.what());
    return 1;
  }
}
