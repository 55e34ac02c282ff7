// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/window.h"

#include <gmock/gmock.h>
#include "c10d_shm/testing.h"
#include "support/error_of.h"

namespace sherd::c10d_shm {
namespace {

using sherd::test::error_of;
using test::BackendRank;
using test::Rank;
using test::run_backend_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<ShmWindow> window_of(BackendRank& ranked) {
  return std::make_shared<ShmWindow>(
      c10::intrusive_ptr<ShmBackend>::reclaim_copy(&ranked.shm()));
}

void wait_for_next(ShmWindow& window, int rank) {
  window.wait_for_signal(
      rank, window.next_signal(rank), std::chrono::seconds(20));
}

// Tensors of 4, 5, ... elements, each the view of a larger one. Each rank puts into the next one's
// again and again and signals that, and the next one signals when it may put again.
TEST(ShmWindow, PutsAreSeenAfterASignal) {
  for (const int ranks : {1, 2, 3}) {
    test::expect_all_ok(
        run_backend_ranks(ranks, {}, [&](BackendRank& ranked, Rank&) {
          const int own = ranked.rank();
          const int next = (own + 1) % ranks;
          const int last = (own + ranks - 1) % ranks;
          const auto whole = torch::arange(10 + own, torch::kLong);
          const auto mine = whole.slice(0, 6);
          const auto window = window_of(ranked);
          window->register_tensor(mine, true);
          // The others may already have put the next two.
          EXPECT_TRUE(
              whole.slice(0, 0, 8).equal(torch::arange(8, torch::kLong)));
          EXPECT_EQ(window->tensor_of(next).numel(), 4 + next);
          for (int turn = 0; turn < 200; ++turn) {
            window->put(
                torch::full({2}, 1000 * turn + own, torch::kLong), next, 2);
            window->signal(next);
            wait_for_next(*window, last);
            EXPECT_EQ(whole[8].item<int>(), 1000 * turn + last);
            EXPECT_EQ(mine[3].item<int>(), 1000 * turn + last);
            EXPECT_EQ(mine[1].item<int>(), 7);
            window->signal(last);
            wait_for_next(*window, next);
          }
          const auto theirs = window->tensor_of(next);
          EXPECT_EQ(theirs[2].item<int>(), 199'000 + own);
          window->deregister_tensor();
          EXPECT_EQ(mine[2].item<int>(), 199'000 + last);
          mine.fill_(3);  // It may be registered again.
          window->register_tensor(mine, false);
          EXPECT_EQ(window->tensor_of(next).sum().item<int>(), 3 * (4 + next));
          window->deregister_tensor();
        }));
  }
}

TEST(ShmWindow, WhatOneRankCannotRegisterIsAnErrorOfAll) {
  test::expect_all_ok(run_backend_ranks(3, {}, [](BackendRank& ranked, Rank&) {
    const auto window = window_of(ranked);
    const auto tensor = torch::ones({4, 4});
    EXPECT_THAT(
        error_of([&] {
          window->register_tensor(
              ranked.rank() == 1 ? tensor.t() : tensor, true);
        }),
        AllOf(HasSubstr("rank 1"), HasSubstr("contiguous")));
    const auto complex = torch::ones({4}, torch::kComplexFloat);
    for (const auto& lazy : {complex.conj(), torch::_neg_view(tensor)}) {
      EXPECT_THAT(
          error_of([&] {
            window->register_tensor(ranked.rank() == 1 ? lazy : tensor, true);
          }),
          AllOf(HasSubstr("rank 1"), HasSubstr("lazy conjugate")));
    }
    EXPECT_THAT(
        error_of([&] { window->signal(0); }),
        HasSubstr("expected a registered tensor"));
    window->register_tensor(tensor, true);
    const auto other = window_of(ranked);
    EXPECT_THAT(
        error_of([&] { other->register_tensor(tensor, true); }),
        HasSubstr("lies in no window"));
    EXPECT_THAT(
        error_of([&] { window->put(torch::ones({2}), 1, 15); }),
        HasSubstr("within the 16 of rank 1, found 15 to 17"));
    EXPECT_THAT(
        error_of([&] { window->put(torch::ones({2}, torch::kLong), 1, 0); }),
        HasSubstr("of the dtype of rank 1's"));
    EXPECT_THAT(
        error_of([&] { window->put(tensor, 3, 0); }),
        HasSubstr("expected a rank from 0 to 2, found 3"));
    EXPECT_THAT(
        error_of([&] { (void)window->has_signal(3, 1); }),
        HasSubstr("expected a rank from 0 to 2, found 3"));
    window->deregister_tensor();
  }));
}

TEST(ShmWindow, ARankThatLeavesIsNamedByWhoWaitsForIt) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    auto window = window_of(ranked);
    window->register_tensor(torch::ones({4}), true);
    if (ranked.rank() == 1) {
      window->signal(0);
      window.reset();
    } else {
      wait_for_next(*window, 1);  // The signal was sent before.
      EXPECT_THAT(
          error_of([&] { wait_for_next(*window, 1); }), HasSubstr("rank 1"));
    }
    ranked.shm().barrier({})->wait();  // The group goes on.
  }));
}

}  // namespace
}  // namespace sherd::c10d_shm
