// SPDX-License-Identifier: Apache-2.0
#include <sherd/launch/launch.h>

#include <fcntl.h>
#include <unistd.h>
#include <vector>
#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "launch/job.h"

namespace sherd::launch {
namespace {

// Opens /dev/null for those of 0, 1 and 2 that are closed, lest a pipe of the
// launcher takes such a number and is mistaken for the user's terminal.
std::vector<Descriptor> fill_standard_descriptors() {
  std::vector<Descriptor> filled;
  Descriptor next(::open("/dev/null", O_RDWR));
  while (next.open() && next.get() <= STDERR_FILENO) {
    filled.push_back(std::move(next));
    next = Descriptor(::open("/dev/null", O_RDWR));
  }
  return filled;
}

void check(const LaunchOptions& options) {
  SHERD_CHECK(
      options.ranks >= 1, "[launch] expected at least 1 rank, found ",
      options.ranks);
  SHERD_CHECK(
      !options.command.empty() && !options.command.front().empty(),
      "[launch] expected a program to run, found none");
  SHERD_CHECK(
      options.fake_hosts >= 0 && options.fake_hosts <= options.ranks,
      "[launch] expected at most one fake host for each of ", options.ranks,
      " ranks, found ", options.fake_hosts);
  SHERD_CHECK(
      options.port >= 0 && options.port <= 65535,
      "[launch] expected a port from 1 to 65535, found ", options.port);
  const bool files = options.output == RankOutput::kFiles;
  SHERD_CHECK(
      files == !options.log_dir.empty(), "[launch] expected log_dir ",
      files ? "to name a folder for the logs" : "to be empty without files",
      ", found '", options.log_dir, "'");
  SHERD_CHECK(
      !(files && options.rank0_owns_stdout),
      "[launch] expected rank 0 to write to a file or to own stdout, found ",
      "both");
  SHERD_CHECK(
      options.stop_grace.count() >= 0,
      "[launch] expected stop_grace of at least 0 ms, found ",
      options.stop_grace.count());
}

}  // namespace

int run(const LaunchOptions& options) {
  check(options);
  const std::vector<Descriptor> filled = fill_standard_descriptors();
  const SteadyClock clock;
  return Job(options, clock).run();
}

}  // namespace sherd::launch
