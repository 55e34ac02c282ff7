// SPDX-License-Identifier: Apache-2.0
#include "launch/start_limits.h"

#include <sys/resource.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "launch/launcher_under_test.h"

namespace sherd::launch {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20U;

TEST(StartLimits, NameWhatIsTooLittleAndHowMuchIsNeeded) {
  const HostResources job = needs_of_job(/*groups=*/10, /*processes=*/100);
  EXPECT_THAT(exceeded_limit(job, {}), IsEmpty());
  EXPECT_THAT(
      exceeded_limit(job, {.descriptors = 433}),
      HasSubstr("at least 434 open files for 100 processes, found 433; raise "
                "it with `ulimit -n 434`"));
  EXPECT_THAT(exceeded_limit(job, {.descriptors = 434}), IsEmpty());
  EXPECT_THAT(
      exceeded_limit(job, {.processes = 99}),
      HasSubstr("room for 100 processes, found room for 99 more"));
  EXPECT_THAT(
      exceeded_limit(job, {.memory_bytes = 99 * kMiB}),
      HasSubstr(
          "1 MiB of free memory for each of 100 processes, found 99 MiB"));
}

// A limit below what a rank itself needs.
TEST(StartLimits, ASmallJobNeedsSomeDescriptorsToo) {
  EXPECT_THAT(
      exceeded_limit(needs_of_job(1, 1), {.descriptors = 63}),
      HasSubstr("at least 64 open files for 1 processes, found 63"));
  EXPECT_THAT(
      exceeded_limit(needs_of_job(1, 1), {.descriptors = 64}), IsEmpty());
}

TEST(StartLimits, ThisHostHasRoomForASmallJob) {
  EXPECT_THAT(exceeded_limit(needs_of_job(1, 2), host_limits()), IsEmpty());
}

TEST(StartLimits, AJobThatHasNoDescriptorsIsRefusedAndDoesNotWait) {
  LauncherProcess launcher(
      ranks_of(2, "echo started"), {.descriptors = rlimit{16, 16}});
  const LauncherResult refused = launcher.finish();
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.err, HasSubstr("at least 64 open files"));
  EXPECT_THAT(refused.out, Not(HasSubstr("started")));
}

TEST(StartLimits, ASoftLimitIsRaisedAsFarAsNeeded) {
  LauncherProcess launcher(
      ranks_of(2, "ulimit -S -n"), {.descriptors = rlimit{16, 200}});
  const LauncherResult raised = launcher.finish();
  EXPECT_EQ(raised.exit_status, 0) << raised.err;
  EXPECT_THAT(raised.out, HasSubstr("[rank 1] 64\n"));
}

TEST(StartLimits, MoreRanksThanTheHostCanHoldAreRefusedBeforeOneStarts) {
  const LauncherResult refused =
      launch_and_wait(ranks_of(2000000000, "echo started"));
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.err, HasSubstr("for 2000000000 processes, found"));
  EXPECT_THAT(refused.out, Not(HasSubstr("started")));
}

}  // namespace
}  // namespace sherd::launch
