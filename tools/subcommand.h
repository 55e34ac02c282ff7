// SPDX-License-Identifier: Apache-2.0
//
// What main.cpp knows of a subcommand. Each is in a file of its own, which parses, calls the
// library and prints. Thread rule: one thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sherd::tools {

struct Subcommand {
  CLI::App* app = nullptr;
  // Called after a successful parse, with the words from PROGRAM on as the user wrote them, or none
  // unless `takes_program`. Returns the exit status; may throw sherd::Error.
  std::function<int(const std::vector<std::string>& program)> run;
  // Whether the subcommand's own options end where a program begins.
  bool takes_program = false;
};

// sherd run: start ranks on this host.
Subcommand add_run(CLI::App& app);
// sherd replica: ask a launcher to drain or admit a replica.
Subcommand add_replica(CLI::App& app);
// sherd top: show a running job.
Subcommand add_top(CLI::App& app);
// sherd metrics: print the metrics of a run as CSV.
Subcommand add_metrics(CLI::App& app);

}  // namespace sherd::tools
