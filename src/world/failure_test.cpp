// SPDX-License-Identifier: Apache-2.0
//
// Real processes are killed, stopped or give up, and the others must say within a time limit who
// was lost first.
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>
#include <atomic>
#include <csignal>
#include <functional>
#include <numeric>
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "base/process.h"
#include "support/ranks.h"
#include "world/collectives.h"
#include "world/sigpipe_guard.h"
#include "world/transport.h"
#include "world/world_impl.h"

namespace sherd::world {
namespace {

using namespace std::chrono_literals;
using test::expect_all_ok;
using test::Rank;
using test::RankOptions;
using test::RankReport;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Matcher;

// Below the deadline of waits, which would end them, too.
constexpr auto kNoticedWithin = 10s;
constexpr std::int64_t kHuge = 64 << 20;  // Floats: 256 MB.

std::vector<int> everybody(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

at::Tensor some(std::int64_t n = 4) { return torch::ones({n}); }

RankOptions killing(int rank, int signal = SIGKILL) {
  return {
      .strikes = {{.child = rank, .point = "here", .signal = signal}},
      .close_world = false};
}

// Expects that every rank except `lost` ended in time with an error that names it.
void expect_survivors_name(
    const RankReport& report, int lost, const std::string& how) {
  for (int r = 0; r < static_cast<int>(report.ranks.size()); ++r) {
    if (r == lost) {
      continue;
    }
    EXPECT_EQ(report[r].exit_code, 3)
        << "rank " << r << ", signal " << report[r].signal << ", output:\n"
        << report[r].output;
    EXPECT_THAT(
        report[r].output,
        HasSubstr("rank " + std::to_string(lost) + " was lost: it " + how))
        << "rank " << r;
    EXPECT_LT(report.after_strike(r), kNoticedWithin) << "rank " << r;
  }
}

// All ranks have left the barrier when this returns on `leaver`.
void meet_before_the_loss(const World& world, Transport& comm, int leaver) {
  Collectives(comm, "start").all_gather_texts("").status().throw_if_failed();
  test::let_others_pass(world, leaver);
}

// Every rank waits for its predecessor, so only one of them communicates with the killed rank.
void wait_around_the_ring(Transport& comm, const std::string& what) {
  const int w = comm.size();
  auto into = some();
  const auto in = comm.receive(into, (comm.index() + w - 1) % w, 0);
  in->wait(what).throw_if_failed();
}

TEST(KilledRank, IsNamedByAllWhoWait) {
  for (const int w : {2, 3, 4}) {
    for (int victim = 0; victim < w; ++victim) {
      expect_survivors_name(
          run_ranks(
              w,
              [&](World world, Rank& self) {
                const auto comm =
                    make_c10d_transport(world, "c", everybody(world));
                Collectives(*comm, "start")
                    .all_gather_texts("")
                    .status()
                    .throw_if_failed();
                if (world.rank() == victim) {
                  self.reach("here");
                }
                wait_around_the_ring(*comm, "gather of unit h.3");
              },
              killing(victim)),
          victim, "died; rank ");
    }
  }
}

TEST(KilledRank, ErrorSaysWhatWasWaitedForAndWithWhom) {
  const RankReport report = run_ranks(
      3,
      [&](World world, Rank& self) {
        const auto comm = make_c10d_transport(world, "c", {0, 1, 2});
        meet_before_the_loss(world, *comm, 1);
        if (world.rank() == 1) {
          self.reach("here");
        }
        wait_around_the_ring(*comm, "gather of unit h.3");
      },
      killing(1));
  EXPECT_THAT(
      report[0].output,
      HasSubstr("[world] rank 1 was lost: it died; rank 0 waited for gather of "
                "unit h.3 with rank 2"));
}

TEST(KilledRank, IsNamedByOperationsStartedLater) {
  expect_survivors_name(
      run_ranks(
          3,
          [](World world, Rank& self) {
            const auto comm = make_c10d_transport(world, "c", {0, 1, 2});
            Collectives(*comm, "start")
                .all_gather_texts("")
                .status()
                .throw_if_failed();
            if (world.rank() == 1) {
              self.reach("here");
            }
            ASSERT_TRUE(world.impl()->watch->wait_lost(10s));
            auto t = some();
            const auto sent = comm->send(t, (comm->index() + 2) % 3, 0);
            sent->wait("late send").throw_if_failed();
          },
          killing(1)),
      1, "died; rank ");
}

TEST(KilledRank, IsNamedInCollectivesAndBarriers) {
  using Body = std::function<void(World&, Transport&)>;
  const std::vector<Body> bodies{
      [](World& world, Transport&) { world.barrier(); },
      [](World& world, Transport&) { world.close(); },
      [](World&, Transport& c) {
        Collectives(c, "sum").all_reduce(some(), 1.0).throw_if_failed();
      },
      [](World&, Transport& c) {
        Collectives(c, "sum")
            .all_reduce(some(kHuge / 16), 1.0)
            .throw_if_failed();
      },
      [](World&, Transport& c) {
        Collectives(c, "names")
            .all_gather_texts("x")
            .status()
            .throw_if_failed();
      },
      [](World& world, Transport&) {
        const auto second = make_c10d_transport(world, "second", {0, 1, 2});
      }};
  for (const Body& body : bodies) {
    SCOPED_TRACE(&body - bodies.data());
    expect_survivors_name(
        run_ranks(
            3,
            [&body](World world, Rank& self) {
              const auto comm = make_c10d_transport(world, "c", {0, 1, 2});
              world.barrier();
              if (world.rank() == 2) {
                self.reach("here");
              }
              body(world, *comm);
            },
            killing(2)),
        2, "died; rank ");
  }
}

// Starts a message between ranks 0 and 1, lets rank 1 be killed while its bytes are under way, and
// waits for the rest.
void die_in_the_middle(Transport& comm, Rank& self, bool sender_dies) {
  const int peer = 1 - comm.index();
  const bool sends = (comm.index() == 1) == sender_dies;
  auto t = sends ? some(kHuge) : torch::zeros({kHuge});
  auto ready = some();
  std::unique_ptr<Transfer> p;
  if (sends) {
    // Gloo's request for the bytes arrives before this message.
    const auto told = comm.receive(ready, peer, 1);
    told->wait("the request").throw_if_failed();
    p = comm.send(t, peer, 0);
  } else {
    p = comm.receive(t, peer, 0);
    const auto told = comm.send(ready, peer, 1);
    told->wait("the request").throw_if_failed();
    const volatile float* first = t.data_ptr<float>();
    while (comm.index() == 1 && *first == 0.0F) {
      continue;
    }
  }
  if (comm.index() == 1) {
    self.reach("here");
  }
  p->wait("the rest").throw_if_failed();
  // The connections of rank 1 keep going until the kill: on a fast machine the message may end
  // before that. Then the death is found in the next message.
  p = sends ? comm.send(t, peer, 0) : comm.receive(t, peer, 0);
  p->wait("the rest").throw_if_failed();
  ADD_FAILURE() << "a dead rank finished a second message";
}

// Gloo does not report that a message under way will never end.
TEST(KilledRank, IsNamedInTheMiddleOfAMessage) {
  for (const bool sender_dies : {true, false}) {
    expect_survivors_name(
        run_ranks(
            2,
            [&](World world, Rank& self) {
              const auto comm = make_c10d_transport(world, "c", {0, 1});
              die_in_the_middle(*comm, self, sender_dies);
            },
            killing(1)),
        1, "died; rank 0 waited for the rest");
  }
}

// The same between hosts, where a death shows only in connections. The ranks pretend to be on
// different hosts.
TEST(KilledRank, OfAnotherHostIsNamedInTheMiddleOfAMessage) {
  for (const bool sender_dies : {true, false}) {
    expect_survivors_name(
        run_ranks(
            2,
            [&](World outer, Rank& self) {
              outer.impl()->watch->stop();
              World world = make_world(
                  c10::make_intrusive<c10d::PrefixStore>(
                      "inner", outer.impl()->store),
                  outer.rank(), 2, outer.options(),
                  {.hostname = "host-" + std::to_string(outer.rank())},
                  "127.0.0.1");
              EXPECT_EQ(world.local_size(), 1);
              const auto comm = make_c10d_transport(world, "c", {0, 1});
              die_in_the_middle(*comm, self, sender_dies);
            },
            killing(1)),
        1, "closed its connection; rank 0 waited for the rest");
  }
}

// Gloo writes to the broken connection, which by default ends the process.
TEST(KilledRank, DoesNotKillOthersBySigpipe) {
  for (int i = 0; i < 5; ++i) {
    const RankReport report = run_ranks(
        2,
        [](World world, Rank& self) {
          const auto comm = make_c10d_transport(world, "c", {0, 1});
          Collectives(*comm, "start")
              .all_gather_texts("")
              .status()
              .throw_if_failed();
          if (world.rank() == 1) {
            self.reach("here");
          }
          const auto t = some(1000);
          std::unique_ptr<Transfer> last;
          for (int n = 0; n < 200000; ++n) {  // Continues long after the death.
            last = comm->send(t, 1, n);
          }
          last->wait("a send of many").throw_if_failed();
        },
        killing(1));
    expect_survivors_name(report, 1, "died; rank 0");
  }
}

TEST(SigpipeGuard, TakesAwayOnlyWhatCameMeanwhile) {
  expect_all_ok(test::run_processes(1, [](int, Rank&) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    ::close(ends[0]);
    const auto broken_write = [&] { return ::write(ends[1], "x", 1); };
    {
      const SigpipeGuard guard;
      {
        const SigpipeGuard inner;
        EXPECT_EQ(broken_write(), -1);
      }
      std::thread([&] { EXPECT_EQ(broken_write(), -1); }).join();
    }
    static std::atomic<int> received = 0;
    ::signal(SIGPIPE, [](int) { ++received; });
    EXPECT_EQ(broken_write(), -1);
    EXPECT_EQ(received, 1);
  }));
}

TEST(StoppedRank, RunsIntoTheDeadlineAndIsNamed) {
  const RankReport report = run_ranks(
      2,
      [](World world, Rank& self) {
        const auto comm = make_c10d_transport(world, "c", {0, 1}, 1s);
        world.barrier();
        test::let_others_pass(world, 1);
        if (world.rank() == 1) {
          self.reach("here");
        }
        auto t = some();
        const auto p = comm->receive(t, 1, 0);
        const SteadyClock clock;
        const Instant began = clock.now();
        const Status status = p->wait("reduce of unit h.0");
        EXPECT_GE(clock.now() - began, 900ms);
        EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
        EXPECT_THAT(
            status.message(),
            AllOf(
                HasSubstr("rank 1 did not answer rank 0 within 1 s"),
                HasSubstr("reduce of unit h.0")));
        // Later waits end at once with the same failure.
        EXPECT_EQ(p->wait("again").message(), status.message());
        comm->abandon({});
      },
      killing(1, SIGSTOP));
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
  EXPECT_LT(report.after_strike(0), 1s + kNoticedWithin);
  EXPECT_EQ(report[1].signal, SIGKILL);
}

// A host or the network to it may be down: ranks 0 and 1 answer each other.
TEST(StoppedRank, OfAnotherHostIsNamedWithIt) {
  expect_all_ok(run_ranks(3, [](World outer) {
    const std::string node = outer.rank() == 2 ? "node1" : "node0";
    World world = make_world(
        c10::make_intrusive<c10d::PrefixStore>("inner", outer.impl()->store),
        outer.rank(), 3, outer.options(), {.hostname = node}, "127.0.0.1");
    const auto comm = make_c10d_transport(world, "c", {0, 1, 2}, 1s);
    world.barrier();
    if (outer.rank() != 2) {
      const auto gathered =
          Collectives(*comm, "names").all_gather_texts("x").status();
      EXPECT_THAT(
          gathered.message(),
          AllOf(
              HasSubstr("did not answer rank "),
              HasSubstr("with rank 2; rank 2 is on node1")));
      if (gathered.code() == ErrorCode::kDeadlineExceeded) {
        EXPECT_THAT(
            gathered.message(), HasSubstr("none of whose ranks has answered"));
      }
    }
    outer.barrier();
  }));
}

// Rank 2 waits for rank 0, which waits for rank 1, which is stopped: rank 0 ends first, but rank 1
// is the one to name.
TEST(StoppedRank, IsNamedByThoseWhoOnlySawItsVictimEnd) {
  const RankReport report = run_ranks(
      3,
      [](World world, Rank& self) {
        const auto pair = make_c10d_transport(
            world, "pair", {0, 1, 2}, world.rank() == 0 ? 1s : 20s);
        world.barrier();
        test::let_others_pass(world, 1);
        if (world.rank() == 1) {
          self.reach("here");
        }
        auto t = some();
        const auto p = pair->receive(t, world.rank() == 0 ? 1 : 0, 0);
        p->wait("numbers").throw_if_failed();
      },
      killing(1, SIGSTOP));
  EXPECT_THAT(report[0].output, HasSubstr("rank 1 did not answer rank 0"));
  EXPECT_THAT(
      report[2].output,
      HasSubstr("rank 1 was lost: it did not answer rank 0 within 1 s; rank 2 "
                "waited for numbers with rank 0"));
}

// Rank 0's wait fails because rank 2 has died, in the middle of a message from rank 1, which is
// healthy but stopped, and sends the rest when nobody wants it any more.
TEST(StoppedRank, WritesNothingIntoWhatItsPeerHasGivenUp) {
  void* page = ::mmap(
      nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& late_has_ended = *static_cast<std::atomic<int>*>(page);
  const RankReport report = run_ranks(
      3,
      [&](World world, Rank&) {
        const auto pid = [&](std::size_t rank) {
          return static_cast<pid_t>(world.impl()->records.at(rank).pid);
        };
        const auto comm = make_c10d_transport(world, "c", {0, 1, 2});
        auto t = torch::full({kHuge}, world.rank(), torch::kFloat);
        Collectives(*comm, "start")
            .all_gather_texts("")
            .status()
            .throw_if_failed();
        if (world.rank() == 2) {
          for (;;) {
            ::pause();
          }
        }
        if (world.rank() == 1) {
          const auto rest = comm->send(t, 0, 0);
          EXPECT_FALSE(rest->wait("the rest").ok());
          late_has_ended = 1;
          return;
        }
        const auto rest = comm->receive(t, 1, 0);
        const volatile float* first = t.data_ptr<float>();
        while (*first == 0.0F) {
          continue;
        }
        ::kill(pid(1), SIGSTOP);
        ::kill(pid(2), SIGKILL);
        const Status status = rest->wait("the rest");
        EXPECT_THAT(status.message(), HasSubstr("rank 2 was lost: it died"));
        t.fill_(7);
        ::kill(pid(1), SIGCONT);
        while (late_has_ended == 0) {
          std::this_thread::yield();
        }
        EXPECT_TRUE(torch::equal(t, torch::full_like(t, 7)));
      },
      {.close_world = false});
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
  EXPECT_EQ(report[1].exit_code, 0) << report[1].output;
  EXPECT_EQ(report[2].signal, SIGKILL);
  ::munmap(page, sizeof(std::atomic<int>));
}

TEST(RankThatGivesUp, IsNamedWithItsReason) {
  const RankReport report = run_ranks(
      3,
      [](World world) {
        const auto comm = make_c10d_transport(world, "c", {0, 1, 2});
        meet_before_the_loss(world, *comm, 1);
        if (world.rank() == 1) {
          comm->abandon(Status(ErrorCode::kUnavailable, "[data] out of text"));
          comm->abandon({});  // Idempotent.
          // Stays alive and healthy until the others have noticed.
          world.impl()->watch->wait_lost(10s);
          return;
        }
        auto t = some();
        const auto p = comm->receive(t, 1, 0);
        const Status status = p->wait("batch");
        EXPECT_EQ(status.code(), ErrorCode::kAborted);
        EXPECT_THAT(
            status.message(),
            HasSubstr("rank 1 was lost: it gave up: [data] out of text"));
      },
      {.close_world = false});
  expect_all_ok(report);
}

TEST(RankThatThrows, IsNamed) {
  const RankReport report = run_ranks(
      3,
      [](World world) {
        const auto comm = make_c10d_transport(world, "c", {0, 1, 2});
        Collectives(*comm, "start")
            .all_gather_texts("")
            .status()
            .throw_if_failed();
        if (world.rank() == 1) {
          throw std::runtime_error("a bug");
        }
        wait_around_the_ring(*comm, "step");
      },
      {.close_world = false});
  EXPECT_EQ(report[1].exit_code, 3);
  for (const int r : {0, 2}) {
    EXPECT_THAT(report[r].output, HasSubstr("rank 1 was lost: it"));
    EXPECT_THAT(report[r].output, HasSubstr("exception"));
  }
}

TEST(RankThatLeaves, IsOnlyAnErrorForThoseWhoNeedIt) {
  const RankReport report = run_ranks(
      3,
      [](World world) {
        const auto comm = make_c10d_transport(world, "c", {0, 1, 2});
        meet_before_the_loss(world, *comm, 1);
        if (world.rank() == 1) {
          return;  // Without World::close().
        }
        // The end of rank 1 is no loss for two ranks that do not need it.
        world.impl()->watch->wait_lost(300ms);
        EXPECT_FALSE(world.impl()->watch->first_lost());
        const int other = world.rank() == 0 ? 2 : 0;
        auto t = some();
        const auto in = comm->receive(t, other, 0);
        const auto out = comm->send(some(), other, 0);
        in->wait("pair").throw_if_failed();
        out->wait("pair").throw_if_failed();
        const auto none = comm->receive(t, 1, 0);
        const Status status = none->wait("batch");
        EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
        EXPECT_THAT(
            status.message(),
            HasSubstr("rank 1 was lost: it closed its end of c and takes part "
                      "no more"));
      },
      {.close_world = false});
  expect_all_ok(report);
}

// A world of these ranks in addition to the one by which the test ends; on one host, or on as many
// hosts as ranks.
World inner_world(const World& outer, const std::string& name, bool one_host) {
  const HostIdentity other{.hostname = str("host-", outer.rank())};
  return make_world(
      c10::make_intrusive<c10d::PrefixStore>(name, outer.impl()->store),
      outer.rank(), outer.size(), {.deadline = 10min},
      one_host ? HostIdentity::of_this_process() : other, "127.0.0.1");
}

// Rank 1 closes without having called what the others wait for. No process ends and no deadline
// passes, either of which would also tell the others.
TEST(RankThatCloses, FailsWhoWaitsForItAndIsNamed) {
  using Body = std::function<void(World&, Transport&)>;
  const std::vector<Body> bodies{
      [](World& world, Transport&) { world.barrier(); },
      [](World& world, Transport&) { (void)world.all_gather({1, 2, 3}); },
      [](World& world, Transport&) { (void)world.all_gather_texts("text"); },
      [](World& world, Transport&) { world.broadcast({some(1000)}); },
      [](World&, Transport& c) {
        Collectives(c, "step").all_gather_texts("").status().throw_if_failed();
      },
      [](World&, Transport& c) {
        Collectives(c, "sum").all_reduce(some(), 1.0).throw_if_failed();
      },
      [](World&, Transport& c) { wait_around_the_ring(c, "batch"); },
      [](World& world, Transport&) {
        const auto second = make_c10d_transport(world, "second", {0, 1, 2});
      }};
  const RankReport report = run_ranks(3, [&](World outer) {
    for (std::size_t n = 0; n < 2 * bodies.size(); ++n) {
      const Body& body = bodies[n / 2];
      SCOPED_TRACE(n);
      {
        World world = inner_world(outer, str("inner-", n), n % 2 == 0);
        auto comm = make_c10d_transport(world, "c", {0, 1, 2});
        world.barrier();
        std::string error;
        try {
          if (world.rank() == 1) {
            comm.reset();
            world.close();
          } else {
            body(world, *comm);
          }
        } catch (const Error& caught) {
          error = caught.what();
        }
        // Rank 1 learns that the ranks that failed are gone, and so may a rank that waits for them
        // and cannot read why.
        EXPECT_THAT(
            error,
            world.rank() == 1
                ? Matcher<std::string>(HasSubstr(" was lost: it "))
                : AnyOf(
                      HasSubstr("rank 1 was lost: it closed its "),
                      HasSubstr("rank 1 was lost: it left the job; "),
                      HasSubstr("; rank 1 had closed its ")));
      }
      outer.barrier();
    }
  });
  expect_all_ok(report);
}

TEST(RankThatCloses, DisturbsNobodyWhoStillReceivesWhatItSent) {
  expect_all_ok(run_ranks(3, [](World world) {
    auto comm = make_c10d_transport(world, "c", everybody(world));
    auto t = world.rank() == 1 ? some(kHuge / 16) : torch::zeros({kHuge / 16});
    Transfers under_way;
    for (int peer = 0; peer < 3; ++peer) {
      if (world.rank() == 1 && peer != 1) {
        under_way.push_back(comm->send(t, peer, 0));
      } else if (peer == 1 && world.rank() != 1) {
        under_way.push_back(comm->receive(t, 1, 0));
      }
    }
    if (world.rank() != 1) {
      // Rank 1 has probably left by the time this rank begins to wait.
      world.impl()->watch->wait_lost(300ms);
    }
    for (const auto& one : under_way) {
      one->wait("weights").throw_if_failed();
    }
    EXPECT_EQ(t.sum().item<float>(), static_cast<float>(t.numel()));
    comm.reset();
    world.close();
  }));
}

TEST(ClosedWorld, HasNoLosses) {
  for (const int w : {2, 4}) {
    expect_all_ok(run_ranks(w, [](World world) {
      {
        const auto comm = make_c10d_transport(world, "c", everybody(world));
      }
      world.close();
      world.close();  // Idempotent.
      if (world.rank() != 0) {
        return;
      }
      // The others end now.
      EXPECT_FALSE(world.impl()->watch->wait_lost(200ms));
      EXPECT_EQ(world.rank(), 0);
      EXPECT_THROW(world.barrier(), Error);
      EXPECT_THROW(make_c10d_transport(world, "d", everybody(world)), Error);
    }));
  }
}

void wait_for_end_of(const World& world, std::size_t rank) {
  const Descriptor process = open_pidfd(world.impl()->records.at(rank).pid);
  pollfd ended{process.get(), POLLIN, 0};
  ::poll(&ended, process.open() ? 1 : 0, process.open() ? 20'000 : 0);
}

// Destructors never wait: these operations are never answered.
TEST(Destruction, DoesNotWaitForUnansweredOperations) {
  for (const bool abandoned : {false, true}) {
    const RankReport report = run_ranks(
        2,
        [&](World world, Rank& self) {
          auto t = some();
          auto big = some(kHuge / 16);
          const auto comm = make_c10d_transport(world, "c", {0, 1});
          world.barrier();
          test::let_others_pass(world, 0);
          if (world.rank() == 0) {
            const auto never = comm->receive(t, 1, 7);
            const auto sent = comm->send(big, 1, 8);
            self.reach("here");
            if (abandoned) {
              comm->abandon({});
            }
            return;
          }
          wait_for_end_of(world, 0);
        },
        {.strikes = {{.child = 0, .point = "here", .signal = SIGCONT}},
         .close_world = false});
    expect_all_ok(report);
    EXPECT_LT(report.after_strike(0), kNoticedWithin);
  }
}

// The moments differ from run to run.
TEST(Connecting, NamesAMemberThatIsKilledMeanwhile) {
  for (int i = 0; i < 12; ++i) {
    const RankReport report = run_ranks(
        3,
        [&](World world, Rank& self) {
          if (world.rank() == 1) {
            std::thread killer([world, &self, i] {
              world.impl()->watch->wait_lost(i * 1ms);  // Some moment.
              self.reach("here");
            });
            killer.detach();
          }
          for (int n = 0; n < 1000; ++n) {
            const auto comm =
                make_c10d_transport(world, str("c", n), {0, 1, 2});
          }
        },
        killing(1));
    expect_survivors_name(report, 1, "died; rank ");
  }
}

}  // namespace
}  // namespace sherd::world
