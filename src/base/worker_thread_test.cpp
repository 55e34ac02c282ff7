// SPDX-License-Identifier: Apache-2.0
#include "base/worker_thread.h"

#include <future>
#include <latch>
#include <stdexcept>
#include <vector>
#include <gtest/gtest.h>

namespace sherd {
namespace {

TEST(WorkerThread, DoesJobsInOrderBesideTheCaller) {
  WorkerThread worker("test");
  std::latch may_go(1);
  std::vector<int> done;
  std::uint64_t last = 0;
  for (int i = 0; i < 100; ++i) {
    last = worker.post([&, i] {
      may_go.wait();
      done.push_back(i);
      return Status();
    });
  }
  EXPECT_TRUE(worker.busy());  // No job can have ended yet.
  may_go.count_down();
  EXPECT_TRUE(worker.wait(last).ok());
  EXPECT_FALSE(worker.busy());
  ASSERT_EQ(done.size(), 100U);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(done[static_cast<std::size_t>(i)], i);
  }
}

TEST(WorkerThread, AWaitMayHaveAnEnd) {
  WorkerThread worker("test");
  std::latch may_go(1);
  const auto job = worker.post([&] {
    may_go.wait();
    return Status();
  });
  EXPECT_FALSE(worker.wait_for(job, std::chrono::milliseconds(1)));
  EXPECT_EQ(worker.ended(), 0U);
  may_go.count_down();
  EXPECT_TRUE(worker.wait_for(job, std::chrono::minutes(1)));
  EXPECT_EQ(worker.ended(), 1U);
}

TEST(WorkerThread, IsSettledWhenTheJobUnderWayAndThoseBehindItHaveEnded) {
  WorkerThread worker("test");
  worker.settle();  // Nothing was posted.
  std::latch has_begun(1);
  bool ended = false;
  worker.post([&] {
    has_begun.count_down();
    ended = true;
    return Status(ErrorCode::kPeerLost, "given up");
  });
  worker.post([&] {
    ended = false;
    return Status();
  });
  has_begun.wait();
  worker.settle();
  EXPECT_TRUE(ended);
  EXPECT_FALSE(worker.busy());
}

TEST(WorkerThread, TheFirstFailureEndsTheWorkAndStays) {
  WorkerThread worker("test");
  bool ran = false;
  const auto good = worker.post([] { return Status(); });
  EXPECT_TRUE(worker.wait(good).ok());
  worker.post([] { return Status(ErrorCode::kPeerLost, "first"); });
  worker.post([&]() -> Status {
    ran = true;
    throw std::runtime_error("second");
  });
  const auto last = worker.post([] { return Status(); });
  EXPECT_EQ(worker.wait(last).message(), "first");
  EXPECT_EQ(worker.failure().code(), ErrorCode::kPeerLost);
  EXPECT_FALSE(ran);
}

TEST(WorkerThread, AnExceptionOfAJobIsItsFailure) {
  WorkerThread worker("test");
  const auto job =
      worker.post([]() -> Status { throw std::runtime_error("no memory"); });
  EXPECT_EQ(worker.wait(job).message(), "no memory");
}

TEST(WorkerThread, AnExceptionOfAnyTypeIsAFailure) {
  WorkerThread worker("test");
  const auto job = worker.post([]() -> Status { throw 7; });
  EXPECT_EQ(
      worker.wait(job).message(), "an exception that is no std::exception");
}

TEST(WorkerThread, WaitsAtItsEndForWhatHasBegun) {
  std::promise<void> begun;
  std::promise<void> go_on;
  bool done = false;
  std::thread helper;
  {
    WorkerThread worker("test");
    worker.post([&] {
      begun.set_value();
      go_on.get_future().wait();
      done = true;
      return Status();
    });
    begun.get_future().wait();
    helper = std::thread([&] { go_on.set_value(); });
  }
  helper.join();
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace sherd
