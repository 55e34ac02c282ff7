// SPDX-License-Identifier: Apache-2.0
//
// Replicas that run out of a system resource at the moment when they need it: a new epoch needs new
// connections, a return needs memory for a whole state. Neither starts a thread.
#include <sys/resource.h>
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <gtest/gtest.h>
#include "ft/cluster.h"

namespace sherd::ft::test {
namespace {

using std::chrono::milliseconds;

// Two epochs one after the other: without the replica that died, then without the one that cannot
// connect.
constexpr Duration kResourceGap = 2 * kGap;

// Returns false if the process has ended.
bool limit(pid_t pid, decltype(RLIMIT_AS) resource, rlim_t value) {
  rlimit limit = {};
  if (::prlimit(pid, resource, nullptr, &limit) != 0) {
    return false;
  }
  limit.rlim_cur = std::min(value, limit.rlim_max);
  return ::prlimit(pid, resource, &limit, nullptr) == 0;
}

// It can open no further descriptor, and none in place of one that it closes: the lowest ones are
// the test's own, which it has inherited.
void allow_no_descriptor(pid_t pid) {
  const auto folder = "/proc/" + std::to_string(pid) + "/fd/";
  constexpr rlim_t kLimit = 10;
  for (rlim_t one = 0; one < kLimit; ++one) {
    EXPECT_TRUE(std::filesystem::is_symlink(folder + std::to_string(one)));
  }
  EXPECT_TRUE(limit(pid, RLIMIT_NOFILE, kLimit));
}

// There is no room for the stack of a thread or for a large block.
void allow_no_memory(pid_t pid) {
  std::ifstream sizes("/proc/" + std::to_string(pid) + "/statm");
  rlim_t pages = 0;
  sizes >> pages;
  const auto page = static_cast<rlim_t>(::sysconf(_SC_PAGESIZE));
  EXPECT_TRUE(limit(pid, RLIMIT_AS, pages * page));
}

TEST(FaultsResources, F54WithoutDescriptorsItAloneIsLeftOutUntilItHasSome) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan needs a pipe to check the type of an object, and ends "
                  "a process that has none";
#endif
  ClusterOptions options;
  options.ends_after_done = std::chrono::seconds(20);
  Cluster cluster(options);
  cluster.at({.replica = 2, .point = "backward", .step = 10}, [&] {
    const auto pid = cluster.pid_of(1, 0);
    allow_no_descriptor(pid);
    cluster.signal_all(2, SIGKILL);
    cluster.after(milliseconds(600), [pid] {
      EXPECT_TRUE(limit(pid, RLIMIT_NOFILE, 1024));
    });
    return std::string();
  });
  cluster.end_behind({.replica = 1, .life = 1, .above = 11});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0}, .gap_max = kResourceGap});
  const auto* poor = outcome.lives_of(1).back();
  EXPECT_TRUE(poor->done) << poor->failure;
  EXPECT_EQ(poor->life, 1);
  EXPECT_EQ(outcome.members_at(outcome.steps), 2) << outcome.coordinator;
}

// A returning replica fetches a whole state but has no room for it: it tries again, or ends.
TEST(FaultsResources, F54WithoutMemoryItAloneIsLeftOutUntilItHasSome) {
  ClusterOptions options;
  options.restarts = true;
  options.ballast_bytes = std::size_t{2} << 20U;
  Cluster cluster(options);
  cluster.kill_at({.replica = 2, .point = "backward", .step = 10});
  cluster.at({.replica = 2, .point = "fetching", .step = -1, .life = 2}, [&] {
    const auto pid = cluster.pid_of(2, 0);
    allow_no_memory(pid);
    cluster.after(milliseconds(1000), [pid] {
      (void)limit(pid, RLIMIT_AS, RLIM_INFINITY);
    });
    return std::string();
  });
  cluster.end_behind({.replica = 2});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1}, .gap_max = kResourceGap});
  const auto* last = outcome.lives_of(2).back();
  EXPECT_TRUE(last->done) << last->failure;
  EXPECT_TRUE(outcome.committed_with(2, last->incarnation));
}

}  // namespace
}  // namespace sherd::ft::test
