// SPDX-License-Identifier: Apache-2.0
//
// The detectors in a ReplicaSession with a model: digests after each step, which agree, and
// gradients that are NaN.
#include <variant>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/disk_cluster.h"
#include "ft/protocol/samples.h"

namespace sherd::ft::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SessionDetector : public ::testing::TestWithParam<int> {};

// The cluster compares what replicas hold.
TEST_P(SessionDetector, F59GradientsThatAreNoNumbersAreLeftOut) {
  const int ranks = GetParam();
  DiskCluster cluster({.ranks = ranks, .steps = 12, .nan_at = 6});
  cluster.start_all();
  ASSERT_TRUE(cluster.run_until_done());

  EXPECT_EQ(cluster.failures(), 0U);
  EXPECT_THAT(cluster.said(), HasSubstr("some are infinite or not a number"));
  EXPECT_THAT(cluster.said(), Not(HasSubstr("hold different bits")));
  History history;
  for (const auto& record : cluster.log()) {
    append(history, record);
    const auto* commit = std::get_if<CommitRecord>(&record);
    if (commit != nullptr && commit->commit.result.step == 6) {
      ASSERT_EQ(commit->participants.size(), 3U);
      EXPECT_EQ(count_of(commit->participants[1].samples), 0);
      EXPECT_EQ(count_of(commit->participants[1].left_out), ranks);
      EXPECT_EQ(commit->commit.samples, 2 * ranks);
    }
  }
  EXPECT_EQ(history.canonical->step, 12);
  EXPECT_EQ(history.consumed.size(), 12 * 3 * ranks);
}

INSTANTIATE_TEST_SUITE_P(Ranks, SessionDetector, ::testing::Values(1, 2));

}  // namespace
}  // namespace sherd::ft::test
