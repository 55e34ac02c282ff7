// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include "parse_arguments.h"
#include "terminal_text.h"
#include "tool_main.h"
#include "trace/chrome_trace.h"
#include "trace/compare_ranks.h"
#include "trace/flight_file.h"

namespace sherd::tools {
namespace {

constexpr const char* kExamples =
    "Examples:\n"
    "  sherd run -n 4 --flight-dir flight -- ./train   leaves events when it "
    "fails\n"
    "  sherd trace flight flight\n"
    "  sherd run -n 4 -- sherd train --profile profile\n"
    "  sherd trace merge profile -o trace.json\n"
    "\n"
    "The trace opens in ui.perfetto.dev and chrome://tracing.";

struct TraceArguments {
  std::string folder;
  std::string output;
};

int show_differences(const std::string& folder) {
  auto files = read_flight_folder(folder);
  align_clocks(files);
  // Other hosts wrote the names and reasons.
  std::fputs(printable_on_terminal(comparison_text(files)).c_str(), stdout);
  return 0;
}

int merge(const TraceArguments& arguments) {
  auto files = read_flight_folder(arguments.folder);
  align_clocks(files);
  errno = 0;
  std::ofstream output(arguments.output, std::ios::binary | std::ios::trunc);
  output << chrome_trace(files);
  output.close();
  if (!output) {
    throw Error(
        arguments.output + ": expected a file to write the trace to, found " +
            std::strerror(errno),
        ErrorCode::kUnavailable);
  }
  for (const auto& file : files) {
    if (file.events.empty()) {
      std::printf(
          "rank %d has no events: it exchanges with nobody\n", file.rank);
    }
  }
  std::printf(
      "%s: %zu of %d ranks; open it in ui.perfetto.dev\n",
      arguments.output.c_str(), files.size(), files.front().world_size);
  return 0;
}

int trace_command(int argc, char** argv) {
  CLI::App app(
      "Compare what ranks did before a failure; merge profiles into a trace",
      "sherd trace");
  app.require_subcommand(1);
  app.footer(kExamples);
  TraceArguments arguments;
  const auto add = [&](const char* name, const char* description) {
    CLI::App* added = app.add_subcommand(name, description);
    added
        ->add_option(
            "folder", arguments.folder, "The folder with rank-0.json and so on")
        ->type_name("FOLDER")
        ->required();
    return added;
  };
  const CLI::App* flight = add(
      "flight",
      "Compare what ranks did before a failure, or a SIGUSR2, and name the\n"
      "first difference");
  add("merge", "Make one trace of a profile of all ranks")
      ->add_option("-o,--output", arguments.output, "The trace, as JSON")
      ->type_name("FILE")
      ->required();
  if (!parse_arguments(app, words_of(argc, argv))) {
    return 0;
  }
  return flight->parsed() ? show_differences(arguments.folder)
                          : merge(arguments);
}

}  // namespace
}  // namespace sherd::tools

int main(int argc, char** argv) {
  return sherd::tools::tool_main(argc, argv, sherd::tools::trace_command);
}
