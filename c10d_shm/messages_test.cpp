// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <csignal>
#include <gmock/gmock.h>
#include "base/clock.h"
#include "c10d_shm/backend.h"
#include "c10d_shm/testing.h"
#include "support/error_of.h"

namespace sherd::c10d_shm {
namespace {

using namespace std::chrono_literals;
using sherd::test::error_of;
using test::BackendRank;
using test::Rank;
using test::run_backend_ranks;
using ::testing::HasSubstr;

// Sent with the header, directly or in one piece, and in several pieces.
constexpr std::array<std::int64_t, 4> kMessageSizes = {0, 10, 5'000, 100'000};

torch::Tensor content(int from, int to, int tag, std::int64_t size) {
  return torch::arange(size, torch::kFloat32) + from * 7 + to * 3 + tag;
}

using Message = c10::intrusive_ptr<c10d::Work>;

Message send(BackendRank& ranked, torch::Tensor tensor, int to, int tag) {
  std::vector<torch::Tensor> tensors = {std::move(tensor)};
  return ranked.shm().send(tensors, to, tag);
}
Message receive(BackendRank& ranked, torch::Tensor tensor, int from, int tag) {
  std::vector<torch::Tensor> tensors = {std::move(tensor)};
  return ranked.shm().recv(tensors, from, tag);
}

// Every rank first sends everything, more than any ring holds, then receives it with tags in the
// opposite order.
TEST(ShmMessages, AnyOrderOfTagsAndRanks) {
  constexpr int kTags = 40;
  for (const auto& communicator : test::all_transfer_paths()) {
    for (const int ranks : {2, 3, 4}) {
      test::expect_all_ok(run_backend_ranks(
          ranks, {.communicator = communicator},
          [](BackendRank& ranked, Rank&) {
            const int own = ranked.rank();
            for (const auto size : kMessageSizes) {
              std::vector<Message> works;
              for (int tag = 0; tag < kTags; ++tag) {
                for (int r = 0; r < ranked.ranks(); ++r) {
                  if (r != own) {
                    works.push_back(
                        send(ranked, content(own, r, tag, size), r, tag));
                  }
                }
              }
              for (int tag = kTags - 1; tag >= 0; --tag) {
                for (int r = 0; r < ranked.ranks(); ++r) {
                  if (r != own) {
                    auto found = torch::empty({size});
                    EXPECT_TRUE(receive(ranked, found, r, tag)->wait());
                    EXPECT_TRUE(found.equal(content(r, own, tag, size)));
                  }
                }
              }
              for (const auto& work : works) {
                EXPECT_TRUE(work->wait());
              }
            }
          }));
    }
  }
}

TEST(ShmMessages, OneTagKeepsItsOrder) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    std::vector<Message> works;
    for (int n = 0; n < 50; ++n) {
      const std::int64_t size = n % 2 == 0 ? 3 : 3000;
      if (ranked.rank() == 0) {
        works.push_back(send(ranked, content(0, 1, n, size), 1, 5));
      } else {
        auto found = torch::empty({size});
        receive(ranked, found, 0, 5)->wait();
        EXPECT_TRUE(found.equal(content(0, 1, n, size)));
      }
    }
    for (const auto& work : works) {
      work->wait();
    }
  }));
}

TEST(ShmMessages, FromAnyRankSaysFromWhich) {
  test::expect_all_ok(run_backend_ranks(4, {}, [](BackendRank& ranked, Rank&) {
    if (ranked.rank() != 0) {
      send(ranked, content(ranked.rank(), 0, 1, 2000), 0, 1)->wait();
      return;
    }
    std::vector<int> sources;
    for (int i = 0; i < 3; ++i) {
      auto found = torch::empty({2000});
      std::vector<torch::Tensor> tensors = {found};
      const auto work = ranked.shm().recvAnysource(tensors, 1);
      work->wait();
      sources.push_back(work->sourceRank());
      EXPECT_TRUE(found.equal(content(sources.back(), 0, 1, 2000)));
    }
    EXPECT_THAT(sources, ::testing::UnorderedElementsAre(1, 2, 3));
  }));
}

// A rank that waits for a message does not block collectives, and the reverse.
TEST(ShmMessages, AreIndependentOfCollectives) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    std::vector<torch::Tensor> sum = {torch::ones({100})};
    auto found = torch::empty({4, 5}).t();
    const auto sent = torch::arange(20.0F).view({5, 4});
    if (ranked.rank() == 0) {
      const auto collective = ranked.shm().allreduce(sum, {});
      receive(ranked, found, 1, 0)->wait();
      EXPECT_TRUE(found.equal(sent));
      collective->wait();
    } else {
      send(ranked, sent, 0, 0)->wait();
      ranked.shm().allreduce(sum, {})->wait();
    }
    EXPECT_EQ(sum[0].sum().item<float>(), 200);
  }));
}

// Rank 0 sends what does not fit the tensor of rank 1: both ends get an error with the same words,
// and the group goes on.
TEST(ShmMessages, WhatDoesNotFitIsAnErrorOnBothEnds) {
  struct Case {
    torch::Tensor sent;
    torch::Tensor room;
    const char* error;
  };
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    const std::vector<Case> cases = {
        {torch::ones({1001}), torch::zeros({1000}),
         "expected at most 4000 bytes of Float, for which the receiver has "
         "room, found 4004 bytes of Float"},
        {torch::ones({1000}, torch::kInt32), torch::zeros({1000}),
         "expected at most 4000 bytes of Float, for which the receiver has "
         "room, found 4000 bytes of Int"}};
    for (const auto& each : cases) {
      const auto error = error_of([&] {
        if (ranked.rank() == 0) {
          send(ranked, each.sent, 1, 3)->wait();
        } else {
          receive(ranked, each.room, 0, 3)->wait();
        }
      });
      EXPECT_THAT(error, HasSubstr(each.error));
      EXPECT_EQ(each.room.count_nonzero().item<std::int64_t>(), 0);
      ranked.shm().barrier({})->wait();
    }
  }));
}

TEST(ShmMessages, AShorterMessageFillsTheBeginning) {
  for (const auto& communicator : test::all_transfer_paths()) {
    test::expect_all_ok(run_backend_ranks(
        2, {.communicator = communicator}, [](BackendRank& ranked, Rank&) {
          for (const std::int64_t size : {10, 5'000, 100'000}) {
            if (ranked.rank() == 0) {
              send(ranked, torch::ones({size}), 1, 3)->wait();
              continue;
            }
            auto room = torch::full({2, size}, 7.0F).t();  // It has gaps.
            receive(ranked, room, 0, 3)->wait();
            const auto flat = room.contiguous().flatten();
            EXPECT_TRUE(flat.narrow(0, 0, size).eq(1).all().item<bool>());
            EXPECT_TRUE(flat.narrow(0, size, size).eq(7).all().item<bool>());
          }
        }));
  }
}

// A message that is sent with its header needs no reply, so the sender checks the peer itself.
TEST(ShmMessages, AShortSendToADeadRankIsAnError) {
  const auto report = run_backend_ranks(
      2, {},
      [](BackendRank& ranked, Rank& self) {
        if (ranked.rank() == 1) {
          self.reach("here");
        }
        std::string error = "no error";
        const SteadyClock clock;
        const auto limit = clock.now() + 10s;
        while (error == "no error" && clock.now() < limit) {
          error =
              error_of([&] { send(ranked, torch::ones({4}), 1, 0)->wait(); });
        }
        EXPECT_THAT(error, HasSubstr("rank 1 has died"));
        EXPECT_THAT(
            error_of([&] { send(ranked, torch::ones({4}), 1, 0)->wait(); }),
            HasSubstr("rank 1 has died"));
      },
      {.strikes = {{.child = 1, .point = "here", .signal = SIGKILL}}});
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
}

TEST(ShmMessages, AShortSendToARankThatHasLeftIsAnError) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    if (ranked.rank() == 1) {
      ranked.drop();
      ranked.prefixed("test")->set("left", "1");
      ranked.prefixed("test")->wait({"done"});
    } else {
      ranked.prefixed("test")->wait({"left"});
      EXPECT_THAT(
          error_of([&] { send(ranked, torch::ones({4}), 1, 0)->wait(); }),
          HasSubstr("rank 1 has left"));
      ranked.prefixed("test")->set("done", "1");
    }
  }));
}

TEST(ShmMessages, ARankThatDiesAmongLargeReceivesIsNamed) {
  const auto report = run_backend_ranks(
      2, {},
      [](BackendRank& ranked, Rank& self) {
        if (ranked.rank() == 1) {
          self.reach("here");
        }
        const auto error = error_of([&] {
          auto tensor = torch::ones({1'000'000});
          for (;;) {
            if (ranked.rank() == 1) {
              send(ranked, tensor, 0, 0)->wait();
            } else {
              receive(ranked, tensor, 1, 0)->wait();
            }
          }
        });
        EXPECT_THAT(error, HasSubstr("rank 1 has died"));
      },
      {.strikes = {
           {.child = 1, .point = "here", .signal = SIGKILL, .later = 20ms}}});
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
}

TEST(ShmMessages, ADeadRankIsNamedLongBeforeTheTimeout) {
  for (const std::int64_t size : {10, 100'000}) {
    const auto report = run_backend_ranks(
        3, {},
        [&](BackendRank& ranked, Rank& self) {
          if (ranked.rank() == 2) {
            self.reach("here");
          }
          EXPECT_THAT(
              error_of(
                  [&] { receive(ranked, torch::empty({size}), 2, 0)->wait(); }),
              HasSubstr("rank 2 has died"));
        },
        {.strikes = {{.child = 2, .point = "here", .signal = SIGKILL}}});
    for (int r = 0; r < 2; ++r) {
      EXPECT_EQ(report[r].exit_code, 0) << report[r].output;
      EXPECT_LT(report.after_strike(r), 10s);
    }
  }
}

TEST(ShmMessages, ASilentRankIsNamedAfterTheTimeout) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    ranked.shm().setTimeout(300ms);
    if (ranked.rank() == 0) {
      EXPECT_THAT(
          error_of([&] { receive(ranked, torch::empty({10}), 1, 0)->wait(); }),
          ::testing::AllOf(
              HasSubstr("rank 1 is not responding"), HasSubstr("timed out")));
      ranked.prefixed("test")->set("done", "1");
    } else {
      ranked.prefixed("test")->wait({"done"});
    }
  }));
}

// Rank 1 waits in a collective for rank 0, which waits for a message of rank 1.
TEST(ShmMessages, ARankThatTimesOutDoesNotNameItself) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    ranked.shm().setTimeout(300ms);
    std::vector<torch::Tensor> tensor = {torch::ones({10})};
    c10d::AllreduceOptions patient;
    patient.timeout = 20s;
    const auto error = error_of([&] {
      if (ranked.rank() == 0) {
        receive(ranked, tensor[0], 1, 0)->wait();
      } else {
        ranked.shm().allreduce(tensor, patient)->wait();
      }
    });
    EXPECT_THAT(
        error,
        HasSubstr("rank 1 is not responding, rank 0 timed out waiting for it"));
  }));
}

// Ranks 0 and 1 exchange messages all the time, so their doorbells never rest.
TEST(ShmMessages, ASilentRankIsNamedWhileOtherMessagesFlow) {
  test::expect_all_ok(run_backend_ranks(3, {}, [](BackendRank& ranked, Rank&) {
    const auto store = ranked.prefixed("test");
    if (ranked.rank() == 2) {
      store->wait({"done 0", "done 1"});
      return;
    }
    const int other = 1 - ranked.rank();
    Message waits;
    if (ranked.rank() == 0) {
      ranked.shm().setTimeout(300ms);
      waits = receive(ranked, torch::empty({10}), 2, 7);
      ranked.shm().setTimeout(20s);
    }
    const SteadyClock clock;
    const Instant limit = clock.now() + 15s;
    const auto error = error_of([&] {
      while (clock.now() < limit) {
        const auto sent = send(ranked, torch::ones({4}), other, 0);
        receive(ranked, torch::empty({4}), other, 0)->wait();
        sent->wait();
      }
    });
    EXPECT_THAT(error, HasSubstr("rank 2 is not responding"));
    EXPECT_LT(clock.now(), limit);
    if (waits) {
      EXPECT_THAT(
          error_of([&] { waits->wait(); }),
          HasSubstr("rank 2 is not responding"));
    }
    store->set("done " + std::to_string(ranked.rank()), "1");
  }));
}

// Rank 1 takes nothing before its first receive. Then its thread takes all, and rank 0 may leave.
TEST(ShmMessages, ManyShortSendsArriveThoughTheirSenderHasLeft) {
  constexpr int kSends = 20;
  constexpr int kRing = 16;
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    const auto store = ranked.prefixed("test");
    if (ranked.rank() == 0) {
      std::vector<Message> works;
      for (int n = 0; n < kSends; ++n) {
        works.push_back(send(ranked, content(0, 1, n, 10), 1, 0));
      }
      for (int n = 0; n < kSends; ++n) {
        EXPECT_EQ(works[static_cast<std::size_t>(n)]->isCompleted(), n < kRing);
      }
      store->set("sent", "1");
      for (const auto& work : works) {
        EXPECT_TRUE(work->wait());
      }
      ranked.drop();
      store->set("left", "1");
      store->wait({"done"});
    } else {
      store->wait({"sent"});
      for (int n = 0; n < kSends; ++n) {
        auto found = torch::empty({10});
        receive(ranked, found, 0, 0)->wait();
        EXPECT_TRUE(found.equal(content(0, 1, n, 10)));
        if (n == 0) {
          store->wait({"left"});
        }
      }
      store->set("done", "1");
    }
  }));
}

TEST(ShmMessages, WhatWasSentBeforeLeavingArrives) {
  test::expect_all_ok(run_backend_ranks(2, {}, [](BackendRank& ranked, Rank&) {
    if (ranked.rank() == 0) {
      send(ranked, content(0, 1, 0, 10), 1, 0)->wait();
      ranked.drop();
      ranked.prefixed("test")->set("left", "1");
      ranked.prefixed("test")->wait({"done"});
    } else {
      ranked.prefixed("test")->wait({"left"});
      auto found = torch::empty({10});
      receive(ranked, found, 0, 0)->wait();
      EXPECT_TRUE(found.equal(content(0, 1, 0, 10)));
      EXPECT_THAT(
          error_of([&] { receive(ranked, found, 0, 0)->wait(); }),
          HasSubstr("rank 0 has left"));
      ranked.prefixed("test")->set("done", "1");
    }
  }));
}

}  // namespace
}  // namespace sherd::c10d_shm
