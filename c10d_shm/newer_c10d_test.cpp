// SPDX-License-Identifier: Apache-2.0
//
// Features of only some PyTorch versions: with other versions this file has no tests.
#include "c10d_shm/newer_c10d.h"

#include <atomic>
#include <csignal>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include "c10d_shm/testing.h"
#include "support/error_of.h"

namespace sherd::c10d_shm {
namespace {

#ifdef C10D_BACKEND_HAS_RECONFIGURE
using namespace std::chrono_literals;
using sherd::test::error_of;
using test::BackendRank;
using test::Rank;
using test::run_backend_ranks;
using ::testing::HasSubstr;

float sum_of_ones(c10d::Backend& backend) {
  std::vector<torch::Tensor> tensor = {torch::ones({1000})};
  backend.allreduce(tensor)->wait();
  return tensor[0].sum().item<float>() / 1000;
}

// Applications exchange handles through a store, as here.
std::vector<std::string> exchange_handles(
    BackendRank& ranked,
    c10d::Backend& backend,
    const std::vector<int>& members,
    const std::string& name) {
  const auto store = ranked.prefixed(name);
  const std::string own = backend.get_reconfigure_handle();
  store->set(
      std::to_string(ranked.rank()),
      std::vector<std::uint8_t>(own.begin(), own.end()));
  std::vector<std::string> handles;
  for (const int member : members) {
    const auto bytes = store->get(std::to_string(member));
    handles.emplace_back(bytes.begin(), bytes.end());
  }
  return handles;
}

void form(
    c10d::Backend& backend,
    std::int64_t uuid,
    const std::vector<std::string>& handles) {
  c10d::ReconfigureOptions options;
  options.uuid = uuid;
  options.handles = handles;
  EXPECT_TRUE(backend.reconfigure(options)->wait());
}

TEST(ShmReconfigure, ABackendWithoutAGroupFormsOne) {
  test::expect_all_ok(run_backend_ranks(3, {}, [](BackendRank& ranked, Rank&) {
    auto options = c10::make_intrusive<ShmBackendOptions>(20s);
    options->enable_reconfigure = true;
    const auto backend = c10::make_intrusive<ShmBackend>(
        ranked.prefixed("later"), ranked.rank(), 3, options);
    EXPECT_TRUE(backend->supportsReconfigure());
    EXPECT_THAT(
        error_of([&] { sum_of_ones(*backend); }),
        HasSubstr("expected a group, found none"));
    auto handles = exchange_handles(ranked, *backend, {2, 0, 1}, "handles");
    form(*backend, 1, handles);
    EXPECT_EQ(backend->getRank(), (ranked.rank() + 1) % 3);
    EXPECT_EQ(sum_of_ones(*backend), 3);
    // In a set, members are in the order of their ranks in the job.
    c10d::ReconfigureOptions unordered;
    unordered.uuid = 2;
    unordered.handles =
        std::unordered_set<std::string>(handles.begin(), handles.end());
    backend->reconfigure(unordered)->wait();
    EXPECT_EQ(backend->getRank(), ranked.rank());
    EXPECT_EQ(sum_of_ones(*backend), 3);
    ranked.shm().barrier({})->wait();
  }));
}

// The survivors of a group go on without the rank that died, under their former names.
TEST(ShmReconfigure, SurvivorsGoOn) {
  const auto report = run_backend_ranks(
      4, {},
      [](BackendRank& ranked, Rank& self) {
        ShmBackend& backend = ranked.shm();
        EXPECT_EQ(sum_of_ones(backend), 4);
        if (ranked.rank() == 1) {
          self.reach("here");
        }
        const auto once_more = [&] {
          for (;;) {
            sum_of_ones(backend);
          }
        };
        EXPECT_THAT(error_of(once_more), HasSubstr("rank 1 has died"));
        const auto handles =
            exchange_handles(ranked, backend, {0, 2, 3}, "handles");
        form(backend, 9, handles);
        EXPECT_EQ(backend.getSize(), 3);
        EXPECT_EQ(sum_of_ones(backend), 3);
        // A message, too.
        std::vector<torch::Tensor> number = {
            torch::full({1}, 1.0F * ranked.rank())};
        if (backend.getRank() == 0) {
          backend.recv(number, 2, 0)->wait();
          EXPECT_EQ(number[0].item<float>(), 3);
        } else if (backend.getRank() == 2) {
          backend.send(number, 0, 0)->wait();
        }
        backend.barrier({})->wait();
      },
      {.strikes = {{.child = 1, .point = "here", .signal = SIGKILL}}});
  for (const int r : {0, 2, 3}) {
    EXPECT_EQ(report[r].exit_code, 0) << report[r].output;
  }
}

TEST(ShmReconfigure, WhatCannotBeRightLeavesTheGroupAsItIs) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    ShmBackend& backend = ranked.shm();
    const auto own = backend.get_reconfigure_handle();
    const auto error_with = [&](const std::vector<std::string>& handles) {
      return error_of([&] { form(backend, 1, handles); });
    };
    EXPECT_THAT(error_with({}), HasSubstr("found none"));
    EXPECT_THAT(error_with({"shm:0:1"}), HasSubstr("found none"));
    EXPECT_THAT(error_with({own, own}), HasSubstr("twice"));
    EXPECT_THAT(error_with({own, "gloo:1"}), HasSubstr("\"gloo:1\""));
    EXPECT_EQ(sum_of_ones(backend), 2);
    const auto handles = exchange_handles(ranked, backend, {0, 1}, "handles");
    form(backend, 1, handles);
    EXPECT_THAT(
        error_with(handles), HasSubstr("a uuid that this backend has not had"));
    EXPECT_EQ(sum_of_ones(backend), 2);
  }));
}

// A rank that does not come is named after the timeout, and the next attempt may succeed.
TEST(ShmReconfigure, AnAttemptThatFailsIsFollowedByAnother) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    ShmBackend& backend = ranked.shm();
    const auto handles = exchange_handles(ranked, backend, {0, 1}, "handles");
    const auto store = ranked.prefixed("test");
    if (ranked.rank() == 0) {
      c10d::ReconfigureOptions options;
      options.uuid = 1;
      options.handles = handles;
      options.timeout = 200ms;
      EXPECT_NE(error_of([&] { backend.reconfigure(options); }), "no error");
      EXPECT_THAT(
          error_of([&] { sum_of_ones(backend); }),
          HasSubstr("expected a group, found none"));
      store->set("failed", "1");
    } else {
      store->wait({"failed"});
    }
    form(backend, 2, handles);
    EXPECT_EQ(sum_of_ones(backend), 2);
  }));
}
#endif

#ifdef C10D_BACKEND_HAS_WINDOW
TEST(ShmC10dWindow, PutsSignalsAndWaits) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    c10d::Backend& backend = ranked.shm();
    EXPECT_TRUE(backend.supportsWindow());
    const auto mine = torch::zeros({4});
    const auto window = backend.new_window(mine);
    const int other = 1 - ranked.rank();
    window->put(torch::ones({2}), other, 1, false, {})->wait();
    window->signal(other, false, {});
    const auto waits = window->wait_signal(other, true, {});
    waits->wait();
    EXPECT_TRUE(waits->isCompleted());
    EXPECT_EQ(mine.sum().item<float>(), 2);
    EXPECT_TRUE(window->map_remote_tensor(other).equal(mine));
    window->tensor_deregister();
  }));
}
#endif

#ifdef C10D_BACKEND_HAS_HOOKS
TEST(ShmHooks, C10dRegistersAbortHooks) {
  test::expect_all_ok(run_backend_ranks(1, {}, [](BackendRank& ranked, Rank&) {
    int calls = 0;
    c10d::Backend& backend = ranked.shm();
    backend.registerAbortHook(4, [&] { ++calls; });
    backend.registerAbortHook(5, [&] { calls += 10; });
    backend.unregisterAbortHook(4);
    backend.abort();
    EXPECT_EQ(calls, 10);
  }));
}
#endif

#ifdef SHERD_C10D_HAS_COMPLETION_HOOKS
TEST(ShmHooks, CompletionHooksHearOfEachWorkThatSucceeds) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    ShmBackend& backend = ranked.shm();
    EXPECT_TRUE(backend.supportsCompletionHooks());
    EXPECT_TRUE(backend.supportsAbortHooks());
    std::atomic<std::uint64_t> last{0};
    std::atomic<int> calls{0};
    backend.registerCompletionHook(1, [&](const auto& done) {
      last = done.completionKey;
      ++calls;
    });
    const auto work = backend.barrier({});
    work->wait();
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(last, work->getCompletionKey());
    const std::int64_t size = 5 + ranked.rank();
    std::vector<torch::Tensor> tensor = {torch::ones({size})};
    EXPECT_NE(
        error_of([&] { backend.allreduce(tensor, {})->wait(); }), "no error");
    EXPECT_EQ(calls, 1);
    backend.unregisterCompletionHook(1);
    backend.barrier({})->wait();
    EXPECT_EQ(calls, 1);
  }));
}
#endif

}  // namespace
}  // namespace sherd::c10d_shm
