// SPDX-License-Identifier: Apache-2.0
//
// The program `sherd-bench`, which `sherd bench` executes.
#include <CLI/CLI.hpp>
#include "bench/command.h"
#include "parse_arguments.h"
#include "tool_main.h"

namespace sherd::bench {
namespace {

int run_command(int argc, char** argv) {
  CLI::App app("Benchmark against PyTorch's FSDP2 and DDP", "sherd bench");
  app.require_subcommand(1);
  int status = 0;
  add_step(app, status);
  add_collectives(app);
  add_faults(app, status);
  tools::parse_arguments(app, tools::words_of(argc, argv));
  return status;
}

}  // namespace
}  // namespace sherd::bench

int main(int argc, char** argv) {
  return sherd::tools::tool_main(argc, argv, sherd::bench::run_command);
}
