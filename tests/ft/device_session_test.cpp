// SPDX-License-Identifier: Apache-2.0
//
// Replicas whose models are on devices, with checked streams: their training gives the same bits as
// replicas on the CPU, and they return, fail and save in the same way.
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/disk_cluster.h"

namespace sherd::ft::test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kEndlessly = std::int64_t{1} << 40;

struct DeviceJob {
  int replicas;
  int ranks;
};

class DeviceSession : public ::testing::TestWithParam<DeviceJob> {};

TEST_P(DeviceSession, TrainsToTheBitsOfTheCpu) {
  constexpr std::int64_t kSteps = 6;
  const auto job = GetParam();
  const auto train = [&](DiskCluster& cluster) {
    cluster.start_all();
    ASSERT_TRUE(cluster.run_until_done());
    ASSERT_EQ(cluster.failure_of_any(), "");
  };
  DiskClusterOptions options{
      .replicas = job.replicas, .ranks = job.ranks, .steps = kSteps};
  DiskCluster on_the_cpu(options);
  train(on_the_cpu);
  options.on_devices = true;
  DiskCluster on_devices(options);
  train(on_devices);
  for (std::int64_t step = 0; step <= kSteps; ++step) {
    for (int rank = 0; rank < job.ranks; ++rank) {
      EXPECT_NE(on_devices.hash_at(step, rank), "");
      EXPECT_EQ(on_devices.hash_at(step, rank), on_the_cpu.hash_at(step, rank))
          << "step " << step << ", rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs,
    DeviceSession,
    ::testing::Values(DeviceJob{2, 1}, DeviceJob{3, 1}, DeviceJob{2, 2}),
    [](const auto& tested) {
      return std::to_string(tested.param.replicas) + "Replicas" +
          std::to_string(tested.param.ranks) + "Ranks";
    });

// Its second incarnation begins with the initial values and has no checkpoint to load. The cluster
// compares what replicas hold.
TEST(DeviceReplicas, AKilledOneReturnsWithTheStateOfAnother) {
  DiskCluster cluster(
      {.on_devices = true, .steps = kEndlessly, .save_every = 0});
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_made(5));
  cluster.kill(1);
  ASSERT_TRUE(cluster.run_until_made(cluster.made() + 5));
  const auto enough = cluster.made() + 5;
  cluster.start(1);
  ASSERT_TRUE(cluster.run_until([&] { return cluster.held_by(1) >= enough; }));
  EXPECT_EQ(cluster.failure_of_any(), "");
}

TEST(DeviceReplicas, OneWithAWrongParameterCopiesTheStateOfAnother) {
  DiskCluster cluster(
      {.on_devices = true, .steps = kEndlessly, .save_every = 0, .flip_at = 6});
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until([&] { return cluster.held_by(1) >= 12; }));
  EXPECT_EQ(cluster.failure_of_any(), "");
  EXPECT_THAT(
      cluster.said(),
      ContainsRegex(
          "replica 1: its bits at step 6 .* are not those of 2 others"));
}

TEST(DeviceReplicas, GradientsThatAreNoNumbersAreLeftOut) {
  DiskCluster cluster({.on_devices = true, .steps = 12, .nan_at = 6});
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_done());
  EXPECT_EQ(cluster.failure_of_any(), "");
  EXPECT_THAT(cluster.said(), HasSubstr("some are infinite or not a number"));
  EXPECT_THAT(cluster.said(), Not(HasSubstr("hold different bits")));
}

}  // namespace
}  // namespace sherd::ft::test
