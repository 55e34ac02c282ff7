// SPDX-License-Identifier: Apache-2.0
//
// sherd-coordinate, executed by `sherd coordinate`: decides for the replicas of a fault-tolerant
// run.
#include <CLI/CLI.hpp>
#include <sherd/base/run_main.h>
#include <sherd/ft/coordinator.h>
#include "coordinator_flags.h"
#include "option_adder.h"
#include "parse_arguments.h"

namespace sherd::tools {
namespace {

using ft::CoordinateOptions;

constexpr const char* kCoordinateExamples =
    "Example, three replicas on this host:\n"
    "  sherd coordinate --bind 127.0.0.1:4300 --log run/coordinator.db \\\n"
    "    --replicas-start 3 --samples-per-replica 12 --status 127.0.0.1:8080\n"
    "\n"
    "Ends in order on Ctrl-C and SIGTERM. When it is killed, start it again\n"
    "with the same log: replicas wait for it, and no committed step is lost.\n"
    "Exit status: 0 when it was told to end, 1 when it cannot go on (the log,\n"
    "an address), 2 wrong usage.";

void add_addresses(CLI::App* app, CoordinateOptions& options) {
  const auto add = option_adder(app);
  add("--bind", options.bind, "HOST:PORT",
      "Where replicas connect (127.0.0.1:0, a free port)");
  add("--log", options.log, "FILE",
      "The file that records what was committed, on a disk\n"
      "of this host; it is made if there is none")
      ->required();
  add("--status", options.status, "HOST:PORT",
      "Serve a status page, /metrics and /status.json, to\n"
      "this host only");
  add("--ready-file", options.ready_file, "FILE",
      "Write the address of the coordinator into this file\n"
      "once it listens, and that of the status page as a\n"
      "second line");
  add("--secret-file", options.secret_file, "FILE",
      "A secret of at least 16 bytes; replicas must have\n"
      "the same file");
  add("--tls-cert", options.tls_certificate, "PEM",
      "Certificate of this coordinator, for mutual TLS");
  add("--tls-key", options.tls_key, "PEM", "Its key");
  add("--tls-ca", options.tls_authority, "PEM",
      "The authority that has signed the replicas'\n"
      "certificates");
}

void add_rules(CLI::App* app, CoordinateOptions& options) {
  const auto add = option_adder(app);
  add("--replicas-min", options.replicas_min, "N",
      "No step is committed by fewer replicas (1)");
  add("--replicas-start", options.replicas_start, "N",
      "The first step waits for this many replicas (1)");
  add("--samples-per-replica", options.samples_per_replica, "N",
      "Samples of each replica in a step (1)");
  add("--global-batch", options.global_batch, "N",
      "Instead: samples of all replicas together in a step,\n"
      "also while some are missing (0: as above)");
  add("--samples-multiple", options.samples_multiple, "N",
      "The share of a replica is a multiple of this, its\n"
      "number of ranks (1)");
  app->add_flag(
      kRecoverFlag, options.recover_from_replicas, kRecoverDescription);
  app->add_flag(
      "--run-has-ended", options.run_has_ended,
      "A replica has ended with the last step in the log:\n"
      "those that lack it are told so, and make no steps\n"
      "again");
  for (const auto& flag : kCoordinatorTimeFlags) {
    app->add_option_function<double>(
           flag.name,
           [&options, value = flag.value](double seconds) {
             options.*value = milliseconds_of(seconds);
           },
           description_of(flag))
        ->check(check_seconds)
        ->type_name("SECONDS")
        ->group("Timers");
  }
}

int coordinate_command(int argc, char** argv) {
  CLI::App app(
      "Run the coordinator of a fault-tolerant job", "sherd coordinate");
  app.footer(kCoordinateExamples);
  CoordinateOptions options;
  add_addresses(&app, options);
  add_rules(&app, options);
  return parse_arguments(app, words_of(argc, argv)) ? ft::coordinate(options)
                                                    : 0;
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  return sherd::run_main(
      argc, argv, [&] { return sherd::tools::coordinate_command(argc, argv); });
}
