// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <CLI/CLI.hpp>
#include <sherd/base/error.h>
#include "subcommand.h"
#include "terminal_text.h"
#include "watch/http_get.h"
#include "watch/run_files.h"
#include "watch/run_view.h"
#include "watch/status_view.h"

namespace sherd::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kRedrawInterval(1);
// Moves to the first column of the first line; kEraseBelow clears from there to the end.
constexpr const char* kHome = "\x1b[H";
constexpr const char* kEraseBelow = "\x1b[J";

constexpr const char* kTopExamples =
    "Examples:\n"
    "  sherd top runs/20260102-030405     a run, by its metrics\n"
    "  sherd top runs/three               the replicas of a run\n"
    "  sherd top 127.0.0.1:8080           a coordinator, by its status page\n"
    "\n"
    "BUSY is how long a rank computed or waited for a core; in the rest of\n"
    "a step it waited for others. Times are means of the last ten steps.\n"
    "Ends on Ctrl-C.";

struct TopArguments {
  std::string target;
  bool once = false;
};

// Output to no terminal has room for everything.
constexpr std::size_t kRowsOfNoTerminal = 1000;

TerminalSize screen() {
  auto size = terminal_size();
  // A full last line would make the terminal scroll.
  size.rows = size.rows == 0 ? kRowsOfNoTerminal
                             : std::max<std::size_t>(size.rows - 1, 1);
  return size;
}

std::string status_text(const std::string& address, const TerminalSize& room) {
  return status_view(http_get(address, "/status.json"), address, room.columns);
}

std::string folder_text(const fs::path& folder, const TerminalSize& room) {
  std::string text;
  if (const auto address = status_address(folder); !address.empty()) {
    try {
      text = status_text(address, room) + "\n";
    } catch (const Error& error) {  // The folder tells what there was.
      text = std::string(error.what()) + "\n\n";
    }
  }
  const auto runs = read_runs(folder);
  if (runs.empty() && text.empty()) {
    throw Error(
        folder.string() +
        ": expected the folder of a run, found neither config.json nor a "
        "replica's folder nor coordinator.address in it");
  }
  const auto above =
      static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  const auto rows = room.rows > above ? room.rows - above : 0;
  return runs.empty() ? text : text + run_view(runs, room.columns, rows);
}

std::string frame(std::string target, const TerminalSize& room) {
  std::error_code ignored;
  if (fs::is_directory(target, ignored)) {
    return folder_text(target, room);
  }
  if (target.starts_with("http://")) {
    target = target.substr(7);
    target = target.substr(0, target.find('/'));
  }
  if (target.find(':') == std::string::npos) {
    throw Error(
        target +
        ": expected the folder of a run or the HOST:PORT of a status "
        "page, found no such folder");
  }
  return status_text(target, room);
}

void run(const TopArguments& arguments) {
  auto text = frame(arguments.target, screen());
  if (arguments.once || ::isatty(STDOUT_FILENO) == 0) {
    print_at_once(text);
    return;
  }
  for (;;) {
    print_at_once(kHome + std::string(kEraseBelow) + text);
    std::this_thread::sleep_for(kRedrawInterval);
    try {
      text = frame(arguments.target, screen());
    } catch (const std::exception& error) {  // The run may come back.
      text = std::string(error.what()) + "\n";
    }
  }
}

}  // namespace

void add_top(CLI::App& app) {
  auto arguments = std::make_shared<TopArguments>();
  CLI::App* top = app.add_subcommand(
      "top", "Show a running job: steps, speed, ranks, stragglers");
  top->footer(kTopExamples);
  top->add_option(
         "target", arguments->target,
         "The folder of a run, or where a coordinator\n"
         "serves its status page (HOST:PORT)")
      ->type_name("RUN|ADDRESS")
      ->required();
  top->add_flag(
      "--once", arguments->once,
      "Print once and end, as without a terminal; else\n"
      "again each second");
  top->callback([arguments] { run(*arguments); });
}

}  // namespace sherd::tools
