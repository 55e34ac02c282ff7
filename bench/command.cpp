// SPDX-License-Identifier: Apache-2.0
#include "bench/command.h"
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <sherd/base/error.h>
#include "command_lines.h"
#include "exec_program.h"
#include "text_file.h"

namespace sherd::bench {
namespace {

// The load average of the last minute, as the kernel writes it.
std::string load() {
  const std::string text = tools::text_of_file("/proc/loadavg").value_or("");
  return text.substr(0, text.find(' '));
}

std::string machine() {
  std::string model = "unknown processor";
  const std::string text = tools::text_of_file("/proc/cpuinfo").value_or("");
  if (const auto at = text.find("model name"); at != std::string::npos) {
    const auto begin = text.find(": ", at) + 2;
    model = text.substr(begin, text.find('\n', begin) - begin);
  }
  return model + ", " + std::to_string(std::thread::hardware_concurrency()) +
      " cores, load " + load() + " before";
}

std::string commit() {
  tools::CommandLines lines(
      "git -C '" SHERD_BENCH_SOURCE
      "' describe --always --dirty --exclude '*' 2>/dev/null");
  return lines.next().value_or("unknown");
}

void expect_release_build() {
#ifndef NDEBUG
  throw Error(
      "[bench] expected a Release build, found " SHERD_BENCH_BUILD
      ", whose times mean nothing",
      ErrorCode::kFailedPrecondition);
#endif
}

void warn_when_busy() {
  constexpr double kBusy = 0.5;
  const std::string found = load();
  if (std::strtod(found.c_str(), nullptr) > kBusy) {
    std::fprintf(
        stderr,
        "sherd: warning: this machine is busy (load %s); times of ranks that "
        "wait for each other say little then\n",
        found.c_str());
  }
}

// In one line, which "" clears.
void show_progress(const std::string& what) {
  if (::isatty(STDERR_FILENO) == 1) {
    std::fprintf(stderr, "\r\033[K%s", what.c_str());
  }
}

}  // namespace

void expect_file(const std::string& path, int access, const char* remedy) {
  if (::access(path.c_str(), access) != 0) {
    throw Error(
        "[bench] expected " + path + ", found none; " + remedy,
        ErrorCode::kUnavailable);
  }
}

void expect_program(const char* name) {
  expect_file(tools::path_beside(name), X_OK, "it needs a build with LibTorch");
}

StepPrograms programs_of_ranks() {
  expect_program("sherd-bench-rank");
  StepPrograms found;
  found.sherd = tools::path_beside("sherd");
  found.rank = tools::path_beside("sherd-bench-rank");
  for (char** variable = environ; *variable != nullptr; ++variable) {
    found.environment.emplace_back(*variable);
  }
  return found;
}

BenchmarkContext benchmark_context() {
  expect_release_build();
  warn_when_busy();
  return {
      .sherd_version = SHERD_VERSION,
      .commit = commit(),
      .build = SHERD_BENCH_BUILD,
      .machine = machine()};
}

int unless_interrupted(
    const std::function<int(const SignalFd&, const ProgressCallback&)>&
        measure) {
  const SignalFd signals{SIGINT, SIGTERM, SIGHUP};
  int status = 0;
  std::exception_ptr failure;
  try {
    status = measure(signals, &show_progress);
  } catch (const Interrupted& interrupted) {
    show_progress("");
    std::fprintf(stderr, "sherd: interrupted; every rank has been ended\n");
    status = 128 + interrupted.signal;
  } catch (...) {
    failure = std::current_exception();
  }
  // timeout(1) may send several signals; a second one must not kill on the way out.
  (void)signals.take();
  if (failure) {
    std::rethrow_exception(failure);
  }
  return status;
}

void print_report(
    bool json_only, const std::string& table, const std::string& json) {
  if (!json_only) {
    std::fputs(table.c_str(), stdout);
  }
  std::puts(json.c_str());
}

}  // namespace sherd::bench
