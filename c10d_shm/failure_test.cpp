// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>
#include <array>
#include <atomic>
#include <csignal>
#include <iostream>
#include <thread>
#include <gmock/gmock.h>
#include "c10d_shm/backend.h"
#include "c10d_shm/testing.h"
#include "shm/join.h"
#include "support/error_of.h"

namespace sherd::c10d_shm {
namespace {

using namespace std::chrono_literals;
using sherd::test::error_of;
using test::BackendRank;
using test::Rank;
using test::run_backend_ranks;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

void all_reduce(BackendRank& ranked, std::int64_t size) {
  std::vector<torch::Tensor> tensor = {torch::ones({size})};
  ranked.shm().allreduce(tensor, {})->wait();
}

// Sizes for each path.
constexpr std::array<std::int64_t, 3> kSizesOfEachWay = {8, 100'000, 4'000'000};

TEST(ShmFailure, EveryRankNamesTheDeadOneLongBeforeTheTimeout) {
  for (const auto size : kSizesOfEachWay) {
    for (const int ranks : {2, 4}) {
      const auto report = run_backend_ranks(
          ranks, {},
          [&](BackendRank& ranked, Rank& self) {
            all_reduce(ranked, size);
            if (ranked.rank() == 1) {
              self.reach("here");
            }
            for (;;) {
              const auto error = error_of([&] { all_reduce(ranked, size); });
              if (error != "no error") {
                EXPECT_THAT(error, HasSubstr("rank 1 has died"));
                EXPECT_EQ(error_of([&] { all_reduce(ranked, size); }), error);
                break;
              }
            }
          },
          {.strikes = {{.child = 1, .point = "here", .signal = SIGKILL}}});
      for (int r = 0; r < ranks; ++r) {
        if (r != 1) {
          EXPECT_EQ(report[r].exit_code, 0) << report[r].output;
          EXPECT_LT(report.after_strike(r), 10s);
        }
      }
    }
  }
}

TEST(ShmFailure, ARankThatDiesAmongCopiesIsNamed) {
  const auto report = run_backend_ranks(
      3,
      {.communicator =
           {.single_copy_bytes_min = 1,
            .single_copy_sum_bytes_min = 1,
            .sum_alone_bytes_max = 0}},
      [&](BackendRank& ranked, Rank& self) {
        if (ranked.rank() == 2) {
          // Dies while the others copy from it, or soon after.
          std::thread([] { ::raise(SIGKILL); }).detach();
        }
        static_cast<void>(self);
        const auto error = error_of([&] {
          for (;;) {
            all_reduce(ranked, 1'000'000);
          }
        });
        EXPECT_THAT(error, HasSubstr("rank 2 has died"));
      });
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(report[r].exit_code, 0) << report[r].output;
  }
  EXPECT_EQ(report[2].signal, SIGKILL);
}

TEST(ShmFailure, ASilentRankIsNamedAfterTheTimeout) {
  const auto report = run_backend_ranks(
      3, {},
      [](BackendRank& ranked, Rank& self) {
        ranked.shm().setTimeout(500ms);
        if (ranked.rank() == 2) {
          self.reach("here");
        }
        EXPECT_THAT(
            error_of([&] { all_reduce(ranked, 100); }),
            AllOf(
                HasSubstr("rank 2 is not responding"),
                HasSubstr("timed out after 0.5 s")));
      },
      {.strikes = {{.child = 2, .point = "here", .signal = SIGSTOP}}});
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(report[r].exit_code, 0) << report[r].output;
  }
}

TEST(ShmFailure, AWaitWithATimeoutEndsWithIt) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    std::vector<torch::Tensor> tensor = {torch::ones({10})};
    if (ranked.rank() == 0) {
      const auto work = ranked.shm().allreduce(tensor, {});
      EXPECT_THAT(error_of([&] { work->wait(50ms); }), HasSubstr("timed out"));
      EXPECT_FALSE(work->isCompleted());
      ranked.prefixed("test")->set("waited", "1");
      EXPECT_TRUE(work->wait());
    } else {
      ranked.prefixed("test")->wait({"waited"});
      ranked.shm().allreduce(tensor, {})->wait();
    }
    EXPECT_EQ(tensor[0].sum().item<float>(), 20);
  }));
}

TEST(ShmFailure, ARankThatHasLeftIsNamed) {
  test::expect_all_ok(run_backend_ranks(3, {}, [](BackendRank& ranked, Rank&) {
    all_reduce(ranked, 10);
    if (ranked.rank() == 1) {
      ranked.drop();
      ranked.prefixed("test")->wait({"0", "2"});
      return;
    }
    EXPECT_THAT(
        error_of([&] { all_reduce(ranked, 10); }),
        HasSubstr("rank 1 has left"));
    ranked.prefixed("test")->set(std::to_string(ranked.rank()), "1");
    // No rank mistakes one that ends afterwards for the cause.
    ranked.prefixed("test")->wait({"0", "2"});
  }));
}

// Every rank reports the same error, none hangs, and the group goes on.
TEST(ShmFailure, DifferentSizesAreAnErrorOnEveryRank) {
  for (const auto& communicator : test::all_transfer_paths()) {
    test::expect_all_ok(run_backend_ranks(
        3, {.communicator = communicator}, [](BackendRank& ranked, Rank&) {
          const std::int64_t size = ranked.rank() == 2 ? 90'000 : 70'000;
          EXPECT_THAT(
              error_of([&] { all_reduce(ranked, size); }),
              AllOf(
                  HasSubstr("all_reduce(sum, Float)"), HasSubstr("expected"),
                  HasSubstr("rank 2")));
          all_reduce(ranked, 100);
        }));
  }
}

TEST(ShmFailure, DifferentCallsAreAnErrorOnEveryRank) {
  test::expect_all_ok(run_backend_ranks(3, {}, [](BackendRank& ranked, Rank&) {
    const auto error = error_of([&] {
      if (ranked.rank() == 1) {
        ranked.shm().barrier({})->wait();
      } else {
        all_reduce(ranked, 10);
      }
    });
    EXPECT_EQ(
        error,
        "[c10d_shm] expected all_reduce(sum, Float), which rank 0 calls, found "
        "barrier() of rank 1");
    all_reduce(ranked, 10);
  }));
}

// One rank multiplies what all have.
TEST(ShmFailure, DifferentFactorsAreAnErrorOnEveryRank) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    const auto factor = ranked.rank() == 0 ? 0.5 : 2.0;
    std::vector<torch::Tensor> tensor = {torch::ones({10})};
    const auto reduce = [&] {
      c10d::ReduceOptions options;
      options.reduceOp = test::premul_sum(factor);
      ranked.shm().reduce(tensor, options)->wait();
    };
    const auto all_reduce = [&](const auto& factor_or_tensor) {
      c10d::AllreduceOptions options;
      options.reduceOp = test::premul_sum(factor_or_tensor);
      ranked.shm().allreduce(tensor, options)->wait();
    };
    EXPECT_EQ(
        error_of(reduce),
        "[c10d_shm] expected reduce(premul_sum 0x1p-1, root 0, Float), which "
        "rank 0 calls, found reduce(premul_sum 0x1p+1, root 0, Float) of rank "
        "1");
    EXPECT_EQ(
        error_of([&] { all_reduce(factor); }),
        "[c10d_shm] expected all_reduce(premul_sum 0x1p-1, Float), which rank "
        "0 calls, found all_reduce(premul_sum 0x1p+1, Float) of rank 1");
    EXPECT_TRUE(tensor[0].equal(torch::ones({10})));
    // The same factor, given as a number or a tensor.
    if (ranked.rank() == 0) {
      all_reduce(2.0);
    } else {
      all_reduce(torch::full({}, factor));
    }
    EXPECT_TRUE(tensor[0].equal(torch::full({10}, 4.0F)));
  }));
}

// The first part already does not match, so no part moves anything.
TEST(ShmFailure, CoalescedCallsOfDifferentLengthAreAnErrorOnEveryRank) {
  using Tensors = std::vector<torch::Tensor>;
  const auto run_all = [](BackendRank& ranked, int call, Tensors& tensors) {
    Tensors pieces;
    for (const auto& tensor : tensors) {
      pieces.push_back(tensor.narrow(0, 0, 4).clone());
    }
    auto& shm = ranked.shm();
    const auto work = call == 0 ? shm.allreduce_coalesced(tensors, {})
        : call == 1 ? shm.allgather_into_tensor_coalesced(tensors, pieces, {})
                    : shm.reduce_scatter_tensor_coalesced(pieces, tensors, {});
    work->wait();
  };
  test::expect_all_ok(run_backend_ranks(3, {}, [&](BackendRank& ranked, Rank&) {
    for (const int call : {0, 1, 2}) {
      Tensors tensors;
      for (int i = 0; i < (ranked.rank() == 1 ? 3 : 2); ++i) {
        tensors.push_back(torch::ones({12}) * (ranked.rank() + 1));
      }
      EXPECT_THAT(
          error_of([&] { run_all(ranked, call, tensors); }),
          AllOf(
              HasSubstr("part 1 of 2"), HasSubstr("which rank 0 calls, found"),
              HasSubstr("part 1 of 3"), HasSubstr("of rank 1")));
      for (const auto& tensor : tensors) {
        EXPECT_EQ(tensor.sum().item<int>(), 12 * (ranked.rank() + 1));
      }
      tensors.resize(2);
      run_all(ranked, call, tensors);
    }
  }));
}

// They run before the call throws, but not for a call that the group survives.
TEST(ShmFailure, AbortHooksRunWhenTheGroupEnds) {
  const auto report = run_backend_ranks(
      2, {},
      [](BackendRank& ranked, Rank& self) {
        int calls = 0;
        ranked.shm().abort_hooks().set(1, [&] { ++calls; });
        const std::int64_t size = 10 + ranked.rank();
        EXPECT_NE(error_of([&] { all_reduce(ranked, size); }), "no error");
        all_reduce(ranked, 10);
        EXPECT_EQ(calls, 0);
        if (ranked.rank() == 1) {
          self.reach("here");
        }
        EXPECT_NE(
            error_of([&] {
              for (;;) {
                all_reduce(ranked, 10);
              }
            }),
            "no error");
        EXPECT_EQ(calls, 1);
        ranked.shm().abort();
        EXPECT_EQ(calls, 2);
        ranked.shm().abort_hooks().remove(1);
      },
      {.strikes = {{.child = 1, .point = "here", .signal = SIGKILL}}});
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
}

TEST(ShmFailure, AbortHooksRunWhenAMessageFindsThatItsSenderDied) {
  const auto report = run_backend_ranks(
      2, {},
      [](BackendRank& ranked, Rank& self) {
        std::atomic<int> calls{0};
        ranked.shm().abort_hooks().set(1, [&] { ++calls; });
        all_reduce(ranked, 10);
        if (ranked.rank() == 1) {
          self.reach("here");
        }
        std::vector<torch::Tensor> tensor = {torch::ones({10})};
        EXPECT_THAT(
            error_of([&] { ranked.shm().recv(tensor, 1, 0)->wait(); }),
            HasSubstr("rank 1 has died"));
        EXPECT_EQ(calls, 1);
        ranked.shm().abort_hooks().remove(1);
      },
      {.strikes = {{.child = 1, .point = "here", .signal = SIGKILL}}});
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
}

TEST(ShmFailure, ClosingWithWorkUnderWayEndsItOnEveryRank) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    std::vector<torch::Tensor> tensor = {torch::ones({10})};
    if (ranked.rank() == 0) {
      const auto work = ranked.shm().allreduce(tensor, {});
      ranked.drop();
      EXPECT_TRUE(work->isCompleted());
      // The group's thread may or may not have begun it.
      EXPECT_THAT(
          error_of([&] { work->wait(); }),
          AnyOf(
              HasSubstr("the group was shut down before"),
              HasSubstr("was aborted by rank 0")));
      ranked.prefixed("test")->set("dropped", "1");
    } else {
      ranked.prefixed("test")->wait({"dropped"});
      EXPECT_THAT(
          error_of([&] { all_reduce(ranked, 10); }), HasSubstr("rank 0"));
    }
  }));
}

// --- A rank gives up a call and reuses its memory before the other one comes.

enum class Way { kTimesOut, kAborts, kDropsTheBackend };

using Operation = std::function<c10::intrusive_ptr<c10d::Work>(
    ShmBackend&, std::vector<torch::Tensor>&)>;

// The error of rank 0's call, whose tensor belongs to it again afterwards.
std::string give_up(
    c10::intrusive_ptr<ShmBackend> shm,
    const Operation& operation,
    std::vector<torch::Tensor>& tensors,
    Way way) {
  const auto work = operation(*shm, tensors);
  if (way == Way::kAborts) {
    shm->abort();
  } else if (way == Way::kDropsTheBackend) {
    shm.reset();
  }
  return error_of([&] { work->wait(); });
}

void late_rank_fails(BackendRank& ranked, const Operation& operation, Way way) {
  static int cases = 0;
  const auto store = ranked.prefixed("case" + std::to_string(++cases));
  auto shm = c10::make_intrusive<ShmBackend>(
      store, ranked.rank(), 2, c10::make_intrusive<ShmBackendOptions>(20s));
  shm->setTimeout(200ms);
  std::vector<torch::Tensor> tensors = {torch::ones({1'000'000})};
  if (ranked.rank() == 0) {
    EXPECT_NE(give_up(std::move(shm), operation, tensors, way), "no error");
    tensors[0].fill_(7);
    store->set("given up", "1");
    store->wait({"late rank has ended"});
    EXPECT_TRUE(tensors[0].eq(7).all().item<bool>());
  } else {
    store->wait({"given up"});
    const auto error = error_of([&] { operation(*shm, tensors)->wait(); });
    EXPECT_THAT(error, HasSubstr("rank 0"));
    store->set("late rank has ended", "1");
  }
}

TEST(ShmFailure, WhoComesAfterACallWasGivenUpFailsAndWritesNothing) {
  const std::vector<Operation> operations = {
      [](ShmBackend& shm, auto& tensors) { return shm.allreduce(tensors, {}); },
      [](ShmBackend& shm, auto& tensors) {
        std::vector<torch::Tensor> small = {tensors[0].narrow(0, 0, 10)};
        return shm.allreduce(small, {});
      },
      [](ShmBackend& shm, auto& tensors) { return shm.reduce(tensors, {}); },
      [](ShmBackend& shm, auto& tensors) { return shm.broadcast(tensors, {}); },
      [](ShmBackend& shm, auto& tensors) {
        return shm.getRank() == 0 ? shm.send(tensors, 1, 0)
                                  : shm.recv(tensors, 0, 0);
      }};
  test::expect_all_ok(run_backend_ranks(2, {}, [&](BackendRank& ranked, Rank&) {
    for (const auto& operation : operations) {
      for (const auto way :
           {Way::kTimesOut, Way::kAborts, Way::kDropsTheBackend}) {
        late_rank_fails(ranked, operation, way);
      }
    }
  }));
}

// Each way to use or end a group in a child of fork(). Returns whether all were refused or did
// nothing. `pending` was issued before the fork.
bool has_no_part(BackendRank& ranked, c10d::Work& pending) {
  auto& shm = ranked.shm();
  std::vector<torch::Tensor> tensors = {torch::ones({3})};
  const int other = 1 - ranked.rank();
  const std::vector<std::function<void()>> uses = {
      [&] { shm.allreduce(tensors, {}); },
      [&] { shm.send(tensors, other, 0); },
      [&] { shm.recv(tensors, other, 0); },
      [&] { shm.split(ranked.prefixed("split"), {0, 1}, nullptr); },
      [&] { shm.join_memory("memory", 8); },
      [&] { pending.wait(std::chrono::milliseconds(0)); }};
  for (const auto& use : uses) {
    const auto error = error_of(use);
    if (error.find("found a forked child") == std::string::npos) {
      std::cerr << "expected an error about the fork, found: " << error << '\n';
      return false;
    }
  }
  shm.abort();
  shm.shutdown();
  ranked.drop();
  return true;
}

TEST(ShmFailure, AForkedChildHasNoPartInTheGroup) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    std::vector<torch::Tensor> tensor = {torch::ones({3})};
    const auto store = ranked.prefixed("test");
    all_reduce(ranked, 10);
    if (ranked.rank() == 0) {
      store->wait({"child has ended"});
      ranked.shm().allreduce(tensor, {})->wait();
    } else {
      const auto pending = ranked.shm().allreduce(tensor, {});
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(30);
        ::_exit(has_no_part(ranked, *pending) ? 0 : 1);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
      store->set("child has ended", "1");
      pending->wait();
    }
    EXPECT_EQ(tensor[0].sum().item<int>(), 6);
    all_reduce(ranked, 10);
  }));
}

TEST(ShmFailure, BadTensorsAreRefusedBeforeAnythingIsAwaited) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    auto input = torch::ones({4});
    auto small = torch::ones({7});
    auto other = torch::ones({8}, torch::kInt64);
    EXPECT_THAT(
        error_of([&] { ranked.shm()._allgather_base(small, input, {}); }),
        HasSubstr("expected room for 8 elements, 4 of each rank, found 7"));
    EXPECT_THAT(
        error_of([&] { ranked.shm()._allgather_base(other, input, {}); }),
        HasSubstr("expected Float"));
    std::vector<std::int64_t> from_sizes = {1, 3};
    std::vector<std::int64_t> to_sizes = {3, 1};
    auto room = torch::zeros({4});
    EXPECT_THAT(
        error_of([&] {
          ranked.shm().alltoall_base(room, input, from_sizes, to_sizes, {});
        }),
        HasSubstr(
            ranked.rank() == 0
                ? "expected 12 bytes in the piece of this rank for itself, "
                  "found room for 4"
                : "expected 4 bytes in the piece of this rank for itself, "
                  "found room for 12"));
    std::vector<torch::Tensor> sparse = {input.to_sparse()};
    EXPECT_THAT(
        error_of([&] { ranked.shm().allreduce(sparse, {}); }),
        HasSubstr("dense tensors"));
    std::vector<torch::Tensor> floats = {input};
    c10d::AllreduceOptions bits;
    bits.reduceOp = c10d::ReduceOp::BAND;
    EXPECT_THAT(
        error_of([&] { ranked.shm().allreduce(floats, bits); }),
        HasSubstr("Float, found band"));
    EXPECT_THAT(
        error_of([&] { ranked.shm().broadcast(floats, {.rootRank = 2}); }),
        HasSubstr("a root from 0 to 1, found 2"));
    all_reduce(ranked, 10);
  }));
}

}  // namespace
}  // namespace sherd::c10d_shm
