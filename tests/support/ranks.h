// SPDX-License-Identifier: Apache-2.0
//
// run_ranks() runs a test body on several forked ranks that share a World, so
// that a multi-process test is a plain TEST:
//
//   TEST(Sum, AddsUpOverRanks) {
//     expect_all_ok(run_ranks(3, [](World world) {
//       EXPECT_EQ(sum_over(world, world.rank()), 3);
//     }));
//   }
//
// A rank fails when an EXPECT or ASSERT in its body fails (exit code 1) or an
// exception leaves it (exit code 3; the sentence is in its output). Failure
// tests let the parent kill a rank at a named point:
//
//   auto report = run_ranks(2, [](World world, Rank& self) {
//     if (world.rank() == 1) self.reach("here");
//     world.barrier();
//   }, {.strikes = {{.child = 1, .point = "here", .signal = SIGKILL}}});
//   EXPECT_LT(report.after_strike(0), 2s);
//
// The parent must not have started LibTorch's threads: see child_process.h.
// The store listens on a socket the parent opened, so no port can be taken.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>
#include <sherd/world/world.h>
#include "support/child_process.h"

namespace sherd::test {

using Rank = ChildLink;

WorldOptions test_world_options();

struct RankOptions {
  // Generous: ranks run at low priority and get little of a machine that is busy with other tests.
  std::chrono::milliseconds timeout = std::chrono::seconds(120);
  // Deadlines are 20 s unless given, so that a test that hangs fails by itself.
  WorldOptions world = test_world_options();
  std::vector<Strike> strikes{};
  // The number of ranks on each made-up host, in rank order. If empty, all ranks are on this host
  // or, if SHERD_TEST_HOSTS is set, divided as evenly as possible over that many hosts.
  std::vector<int> hosts{};
  // Whether ranks of these hosts cannot watch each other's processes.
  bool blind_hosts = false;
  // Whether World::close() follows a body that succeeded.
  bool close_world = true;
};

struct RankReport {
  std::vector<ChildEnd> ranks;
  Instant struck_at{0};

  const ChildEnd& operator[](int rank) const {
    return ranks.at(static_cast<std::size_t>(rank));
  }
  // The time from the last strike to the end of `rank`.
  std::chrono::milliseconds after_strike(int rank) const;
};

RankReport run_ranks(
    int world_size,
    const std::function<void(World)>& body,
    const RankOptions& options = {});
RankReport run_ranks(
    int world_size,
    const std::function<void(World, Rank&)>& body,
    const RankOptions& options = {});

// The same without a World, for tests of how one is created.
RankReport run_processes(
    int count,
    const std::function<void(int index, Rank&)>& body,
    const RankOptions& options = {});

// For rank `leaver`, which ends or gives up next: returns when every other rank has called it, too,
// at which it returns at once. Call it after a barrier or a step, whose end the leaver's own would
// otherwise be for ranks that are still in it. Once in a world.
void let_others_pass(const World& world, int leaver);

// Adds a failure for each rank that did not exit with 0, with its output.
void expect_all_ok(const RankReport& report);

// A TCP port that was free a moment ago.
int free_port();

}  // namespace sherd::test
