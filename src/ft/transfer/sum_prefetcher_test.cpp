// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/sum_prefetcher.h"

#include <optional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/transfer/transfer_server.h"
#include "ft/transfer/transfer_testing.h"

namespace sherd::ft {
namespace {

using namespace std::chrono_literals;
using net::testing::run_for;
using net::testing::run_until;
using testing::CapturedResult;
using testing::commit_of;
using testing::kRun;
using testing::random_bytes;
using testing::state_of;

constexpr std::size_t kSumBytes = 1000;

// Two donors, and a SumPrefetcher that collects from them from state 10 on.
struct Collecting {
  explicit Collecting(std::uint64_t bytes_max = 100 * kSumBytes) {
    for (auto& donor : donors) {
      donor.emplace(loop, TransferServerOptions{}, [] {});
      donor->set_run(kRun);
      offer(*donor, state_of(10), random_bytes(10, 1));
    }
    FetchOptions options;
    options.run = kRun;
    collector.emplace(
        loop, std::vector{address(0), address(1)}, options, bytes_max,
        state_of(10));
  }
  net::HostAddress address(std::size_t donor) const {
    return {"127.0.0.1", donors[donor]->port()};
  }
  void make(std::int64_t first, std::int64_t last) {
    for (auto step = first; step <= last; ++step) {
      for (auto& donor : donors) {
        if (donor) {
          donor->keep(
              commit_of(step),
              random_bytes(kSumBytes, static_cast<std::uint64_t>(step)));
        }
      }
    }
  }
  [[nodiscard]] bool has(std::size_t sums) {
    return run_until(
        loop, [&] { return collector->bytes() == sums * kSumBytes; }, 10s);
  }
  // Takes the sum of that step; returns false if it is neither here nor expected.
  bool take(
      std::int64_t step,
      CapturedResult<CommittedSum>& heard,
      std::size_t donor) {
    return collector->take(state_of(step - 1), address(donor), heard.done());
  }
  void expect(std::int64_t step, std::size_t donor = 0) {
    SCOPED_TRACE(step);
    CapturedResult<CommittedSum> heard;
    ASSERT_TRUE(take(step, heard, donor));
    EXPECT_FALSE(heard.any());  // It is called later.
    ASSERT_TRUE(heard.comes(loop));
    ASSERT_EQ(heard.failure(), "");
    EXPECT_EQ(heard.value().commit, commit_of(step));
    EXPECT_EQ(
        *heard.value().bytes,
        *random_bytes(kSumBytes, static_cast<std::uint64_t>(step)));
  }

  net::Loop loop;
  std::array<std::optional<TransferServer>, 2> donors;
  std::optional<SumPrefetcher> collector;
};

TEST(SumPrefetcher, HasEachSumAsSoonAsItIsMade) {
  Collecting all;
  for (std::int64_t step = 11; step <= 20; ++step) {
    all.make(step, step);
    ASSERT_TRUE(all.has(static_cast<std::size_t>(step - 10)));
  }
  for (std::int64_t step = 11; step <= 20; ++step) {
    all.expect(step);
  }
  EXPECT_EQ(all.collector->bytes(), 0U);
}

TEST(SumPrefetcher, StopsAtItsLimitAndGoesOnWhenThereIsRoom) {
  Collecting all(3 * kSumBytes);
  all.make(11, 18);
  ASSERT_TRUE(all.has(3));
  run_for(all.loop, 100ms);
  EXPECT_EQ(all.collector->bytes(), 3 * kSumBytes);
  for (std::int64_t step = 11; step <= 18; ++step) {
    all.expect(step);
  }
}

TEST(SumPrefetcher, GoesOnWithAnotherDonorWhenOneIsLost) {
  Collecting all;
  all.make(11, 12);
  ASSERT_TRUE(all.has(2));
  all.donors[0].reset();
  all.make(13, 15);
  ASSERT_TRUE(all.has(5));
  all.expect(11, 1);
}

TEST(SumPrefetcher, HandsOverWhatIsStillToCome) {
  Collecting all;
  CapturedResult<CommittedSum> early;
  ASSERT_TRUE(all.take(11, early, 0));  // That donor refuses.
  ASSERT_TRUE(early.comes(all.loop));
  EXPECT_EQ(early.code(), ErrorCode::kFailedPrecondition);
  all.make(11, 11);
  ASSERT_TRUE(all.has(1));
  all.expect(11);
  // It comes from the donor that has it, whatever the donor that it waits for does.
  all.donors[1]->keep(commit_of(12), random_bytes(kSumBytes, 12));
  all.expect(12, 1);
  EXPECT_EQ(all.collector->bytes(), 0U);
}

TEST(SumPrefetcher, KnowsNothingOfOtherStates) {
  Collecting all;
  all.make(11, 13);
  ASSERT_TRUE(all.has(3));
  CapturedResult<CommittedSum> heard;
  EXPECT_FALSE(
      all.collector->take(state_of(11, 9), all.address(0), heard.done()));
  EXPECT_FALSE(all.collector->take(state_of(5), all.address(0), heard.done()));
  all.expect(12);  // Earlier sums are useless now.
  all.expect(13);
}

TEST(SumPrefetcher, EndsWhenNobodyIsLeftAndMayBeAskedAgain) {
  Collecting all;
  for (auto& donor : all.donors) {
    donor.reset();
  }
  run_for(all.loop, 100ms);
  TransferServer other(all.loop, {}, [] {});
  other.set_run(kRun);
  other.keep(commit_of(11), random_bytes(kSumBytes, 11));
  CapturedResult<CommittedSum> heard;
  ASSERT_TRUE(all.collector->take(
      state_of(10), {"127.0.0.1", other.port()}, heard.done()));
  ASSERT_TRUE(heard.comes(all.loop));
  EXPECT_EQ(heard.failure(), "");
}

TEST(SumPrefetcher, HandsOverTheRightOneWhenTheNextOneComesMeanwhile) {
  Collecting all;
  all.make(11, 11);
  for (std::int64_t step = 11; step <= 400; ++step) {
    ASSERT_TRUE(all.has(1));
    all.make(step + 1, step + 1);
    for (std::int64_t turn = 0; turn < step % 20; ++turn) {
      all.loop.post([&] { all.loop.stop(); });
      all.loop.run();
    }
    all.expect(step);
  }
}

TEST(SumPrefetcher, CallsOnlyWhoTookLast) {
  Collecting all;
  all.make(11, 12);
  ASSERT_TRUE(all.has(2));
  CapturedResult<CommittedSum> dropped;
  CapturedResult<CommittedSum> heard;
  ASSERT_TRUE(all.take(11, dropped, 0));
  ASSERT_TRUE(all.take(12, heard, 0));
  ASSERT_TRUE(heard.comes(all.loop));
  EXPECT_EQ(heard.value().commit, commit_of(12));
  EXPECT_FALSE(dropped.any());
}

}  // namespace
}  // namespace sherd::ft
