// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>
#include <chrono>
#include <memory>
#include <string>
#include <vector>
#include <CLI/CLI.hpp>
#include <sherd/launch/launch.h>
#include "subcommand.h"

namespace sherd::tools {
namespace {

using launch::LaunchOptions;
using launch::RankOutput;

constexpr const char* kExplanation =
    "Every rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,\n"
    "MASTER_ADDR and MASTER_PORT, as from torchrun. When one rank fails, the\n"
    "others are ended and the report names the one that failed first. Ctrl-C\n"
    "is passed on to the ranks; a second one kills them.\n";

constexpr const char* kExamples =
    "Examples:\n"
    "  sherd run -n 4 ./train --steps 100\n"
    "  sherd run -n 2 --log-dir logs -- python3 train.py --verbose\n"
    "  sherd run -n 2 --port 29500 ./train\n"
    "\n"
    "Output: each line of a rank is shown after \"[rank 3] \". On a terminal\n"
    "rank 0 writes to it directly, so that its progress bar works.\n"
    "Exit status: 0 when all ranks succeed, else that of the first to fail\n"
    "(128 + signal if killed); 127 program not found, 126 not executable,\n"
    "2 wrong usage.";

// What the command line says, before it becomes LaunchOptions.
struct RunArguments {
  LaunchOptions launch;
  double grace_seconds = 30;
  bool no_bind = false;
  bool no_prefix = false;
  bool no_rank0_tty = false;
};

class RunFormatter : public CLI::Formatter {
 public:
  std::string make_usage(
      const CLI::App* /*app*/, std::string name) const override {
    return "Usage: " + name +
        " -n N [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n\n" + kExplanation;
  }
};

int run(RunArguments arguments, const std::vector<std::string>& program) {
  LaunchOptions& options = arguments.launch;
  options.command = program;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    options.environment.emplace_back(*variable);
  }
  if (!options.log_dir.empty()) {
    options.output = RankOutput::kFiles;
  } else if (arguments.no_prefix) {
    options.output = RankOutput::kPlain;
  }
  options.rank0_owns_stdout = options.output != RankOutput::kFiles &&
      !arguments.no_rank0_tty && ::isatty(STDOUT_FILENO) == 1;
  options.stop_grace = std::chrono::milliseconds(
      static_cast<std::int64_t>(arguments.grace_seconds * 1000));
  options.bind_cores = !arguments.no_bind;
  return launch::run(options);
}

}  // namespace

Subcommand add_run(CLI::App& app) {
  auto arguments = std::make_shared<RunArguments>();
  CLI::App* run_app = app.add_subcommand(
      "run", "Start ranks of a program on this host and watch them");
  run_app->formatter(std::make_shared<RunFormatter>());
  run_app->footer(kExamples);
  run_app->add_option("-n,--ranks", arguments->launch.ranks, "Number of ranks")
      ->type_name("N")
      ->required();
  run_app
      ->add_option(
          "--fake-hosts", arguments->launch.fake_hosts,
          "For tests: let ranks believe that they are on so\n"
          "many hosts, so that those of different ones share\n"
          "no memory")
      ->type_name("N");
  run_app
      ->add_option(
          "--port", arguments->launch.port,
          "Where rank 0 listens; a free one when left out")
      ->type_name("PORT");
  run_app
      ->add_option(
          "--log-dir", arguments->launch.log_dir,
          "Write output to DIR/rank-0.log and so on instead;\n"
          "logs of an earlier run in DIR are replaced")
      ->type_name("DIR");
  run_app->add_flag(
      "--no-prefix", arguments->no_prefix,
      "Show lines as the ranks write them");
  run_app->add_flag(
      "--no-rank0-tty", arguments->no_rank0_tty,
      "Treat rank 0 like the others on a terminal");
  run_app->add_flag(
      "--no-bind", arguments->no_bind,
      "Let every rank use every core; otherwise each gets\n"
      "cores of its own when there are enough");
  run_app
      ->add_option(
          "--grace", arguments->grace_seconds,
          "How long ranks may go on after Ctrl-C or SIGTERM\n"
          "before they are killed (30)")
      ->check(CLI::Range(0.0, 1e6).description(""))
      ->type_name("SECONDS");
  return {
      .app = run_app,
      .run =
          [arguments](const std::vector<std::string>& program) {
            return run(*arguments, program);
          },
      .takes_program = true};
}

}  // namespace sherd::tools
