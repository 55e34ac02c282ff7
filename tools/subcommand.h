// SPDX-License-Identifier: Apache-2.0
//
// The subcommands that main.cpp adds. Each is in a file of its own, and acts in the callback of its
// CLI::App: it calls the library, prints, and may throw sherd::Error. Thread rule: one thread.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sherd::tools {

// sherd run: start ranks on this host. `program` has the words from PROGRAM on, as the user wrote
// them, before `app` parses; `status` is then the exit status. Both must live until then.
void add_run(
    CLI::App& app, const std::vector<std::string>& program, int& status);
// sherd replica: ask a launcher to drain or admit a replica.
void add_replica(CLI::App& app);
// sherd top: show a running job.
void add_top(CLI::App& app);
// sherd metrics: print the metrics of a run as CSV.
void add_metrics(CLI::App& app);

}  // namespace sherd::tools
