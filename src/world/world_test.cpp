// SPDX-License-Identifier: Apache-2.0
#include <sherd/world/world.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <map>
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/world/flight_recorder.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/torch.h>
#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"
#include "support/delay.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/scratch_folder.h"
#include "world/collectives.h"
#include "world/rendezvous.h"
#include "world/store_wait.h"
#include "world/transport.h"
#include "world/world_impl.h"

namespace sherd {
namespace {

using namespace std::chrono_literals;
using test::expect_all_ok;
using test::Rank;
using test::RankReport;
using test::run_processes;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

void set_environment(const Variables& variables) {
  for (const auto& [name, value] : variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
}

Variables torchrun_variables(int rank, int size, int port) {
  return {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(size)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(size)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)}};
}

// 0 if a process listens there.
int connect_error(const char* ip, int port) {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  ::inet_pton(AF_INET, ip, &address.sin_addr);
  const int failed = ::connect(
      socket.get(), reinterpret_cast<const sockaddr*>(&address),
      sizeof address);
  return failed == 0 ? 0 : errno;
}

// The error that from_environment() throws.
Error error_of(const WorldOptions& options) {
  try {
    const World world = World::from_environment(options);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "expected an error";
  return Error("none");
}

TEST(World, OfOneProcessNeedsNothing) {
  World world = World::single();
  EXPECT_EQ(world.rank(), 0);
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.local_rank(), 0);
  EXPECT_EQ(world.local_size(), 1);
  world.barrier();
  world.close();
}

TEST(World, WithoutVariablesIsOneProcess) {
  expect_all_ok(run_processes(1, [](int, Rank&) {
    World world = World::from_environment({.deadline = 3s});
    EXPECT_EQ(world.size(), 1);
    EXPECT_EQ(world.options().deadline, 3s);
    world.close();
  }));
}

TEST(World, MeetsThroughTheEnvironment) {
  for (const int w : {2, 3, 4}) {
    const int port = test::free_port();
    expect_all_ok(run_processes(w, [&](int rank, Rank&) {
      set_environment(torchrun_variables(rank, w, port));
      World world = World::from_environment(test::test_world_options());
      EXPECT_EQ(world.rank(), rank);
      EXPECT_EQ(world.size(), w);
      EXPECT_EQ(world.local_rank(), rank);
      EXPECT_EQ(world.local_size(), w);
      const World copy = world;  // The same job.
      copy.barrier();
      world.barrier();
      world.close();
    }));
  }
}

TEST(World, CallsThatDoNotMatchAreNamedOnEveryRank) {
  expect_all_ok(run_ranks(3, [](World world) {
    const bool last = world.rank() == 2;
    const std::vector<double> many(100, world.rank());
    const auto expect_named = [&](const std::function<void()>& call,
                                  const std::string& first,
                                  const std::string& other) {
      EXPECT_THAT(
          test::error_of(call),
          HasSubstr(
              "[world] ranks went different ways: rank 0 calls " + first +
              ", rank 2 calls " + other));
    };
    expect_named(
        [&] { last ? world.barrier() : (void)world.all_gather({1, 2}); },
        "World::all_gather of 2 numbers", "World::barrier");
    expect_named(
        [&] { (void)world.all_gather(last ? many : std::vector(13, 1.0)); },
        "World::all_gather of 13 numbers", "World::all_gather of 100 numbers");
    expect_named(
        [&] {
          last ? (void)world.all_gather({1.0})
               : world.broadcast({at::ones({3})});
        },
        "World::broadcast of 1 tensors of 12 bytes",
        "World::all_gather of 1 numbers");
    // The world is as good as before, whatever fits into the first message.
    const auto long_text = std::string(1000, 'x');
    const auto texts = world.all_gather_texts(last ? long_text : "short");
    EXPECT_EQ(texts[0], "short");
    EXPECT_EQ(texts[2], long_text);
    EXPECT_EQ(world.all_gather_texts(last ? "" : "short")[2], "");
    EXPECT_EQ(world.all_gather(many)[1], std::vector(100, 1.0));
    EXPECT_EQ(world.all_gather({7.0 * world.rank()})[2][0], 14.0);
  }));
}

// As many tensors and bytes on both ranks, but not tensor by tensor.
TEST(World, TensorsOfOtherSizesAreNotBroadcast) {
  expect_all_ok(run_ranks(2, [](World world) {
    const auto option = [&](bool first) {
      return first ? std::vector<at::Tensor>{at::zeros({4}), at::zeros({8})}
                   : std::vector<at::Tensor>{at::zeros({8}), at::zeros({4})};
    };
    try {
      world.broadcast(option(world.rank() == 0));
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerMismatch);
      EXPECT_THAT(
          error.what(),
          HasSubstr("rank 0 calls World::broadcast of 2 tensors of 48 bytes, "
                    "rank 1 calls World::broadcast of 2 tensors of 48 bytes of "
                    "other dtypes or sizes"));
    }
    const auto tensors = option(true);
    tensors[1].fill_(world.rank() + 5);
    world.broadcast(tensors);
    EXPECT_EQ(tensors[1].sum().item<float>(), 40);
  }));
}

TEST(World, ASubsetIsAWorldOfItsRanks) {
  expect_all_ok(run_ranks(4, [](World world) {
    const int first = world.rank() / 2 * 2;
    // The same ranks connect once more.
    for (int round = 0; round < 2; ++round) {
      World half = world.subset({first, first + 1});
      EXPECT_EQ(half.rank(), world.rank() - first);
      EXPECT_EQ(half.size(), 2);
      EXPECT_EQ(half.local_size(), 2);
      EXPECT_EQ(half.options().deadline, world.options().deadline);
      const double rank = world.rank();
      EXPECT_EQ(
          half.all_gather({rank}),
          (std::vector<std::vector<double>>{{first + 0.0}, {first + 1.0}}));
      half.close();
    }
    World alone = world.subset({world.rank()});
    EXPECT_EQ(alone.size(), 1);
    alone.barrier();
    if (world.rank() != 2) {  // Rank 2 is not in it and takes no part.
      World three = world.subset({0, 1, 3});
      EXPECT_EQ(three.rank(), world.rank() == 3 ? 2 : world.rank());
      three.barrier();
      three.close();
    }
    world.barrier();
  }));
}

TEST(World, ASubsetOfOneRankHasAFlightFolder) {
  expect_all_ok(run_processes(1, [](int, Rank&) {
    const World world = World::single();
    const sherd::testing::ScratchFolder folder;
    set_flight_folder(world, folder.path());
    const World alone = world.subset({0});
    EXPECT_EQ(alone.impl()->flight->folder(), folder.path() + "/subset/0/0");
  }));
}

TEST(World, ASubsetWithoutThisRankIsRefused) {
  expect_all_ok(run_ranks(2, [](World world) {
    const auto refusal = [&](const std::vector<int>& ranks) {
      return test::error_of([&] { (void)world.subset(ranks); });
    };
    EXPECT_THAT(
        refusal({1 - world.rank()}),
        HasSubstr(str("expected rank ", world.rank(), " to be one of")));
    EXPECT_THAT(refusal({}), HasSubstr("expected ascending ranks from 0 to 1"));
    EXPECT_THAT(refusal({1, 0}), HasSubstr("expected ascending ranks"));
    EXPECT_THAT(refusal({0, 1, 2}), HasSubstr("expected ascending ranks"));
    world.barrier();
  }));
}

TEST(World, ALossInASubsetIsSeenThereAndNotElsewhere) {
  const auto report = run_ranks(
      4,
      [](World world, Rank& self) {
        const int first = world.rank() / 2 * 2;
        const World half = world.subset({first, first + 1});
        half.barrier();
        // No barrier of all ranks is used here: the death of a rank that has left it would end it
        // for ranks still in it.
        auto& store = *world.impl()->store;
        if (world.rank() == 1) {
          store.wait({"rank 0", "rank 2", "rank 3"});
          self.reach("here");
        }
        store.set(str("rank ", world.rank()), std::string());
        if (world.rank() == 0) {
          EXPECT_THAT(
              test::error_of([&] { half.barrier(); }),
              HasSubstr("rank 1 was lost"));
        } else {
          half.barrier();
        }
      },
      {.strikes = {{.child = 1, .point = "here", .signal = SIGKILL}},
       .close_world = false});
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
  EXPECT_EQ(report[2].exit_code, 0) << report[2].output;
  EXPECT_EQ(report[3].exit_code, 0) << report[3].output;
  EXPECT_LT(report.after_strike(0), 5s);
}

// The store authenticates nobody.
TEST(World, ListensForTheStoreWhereRanksLookForItAlone) {
  const int port = test::free_port();
  expect_all_ok(run_processes(2, [&](int index, Rank&) {
    set_environment(torchrun_variables(index, 2, port));
    World world = World::from_environment(test::test_world_options());
    EXPECT_EQ(connect_error("127.0.0.1", port), 0);
    EXPECT_EQ(connect_error("127.0.0.2", port), ECONNREFUSED);
    world.barrier();
    world.close();
  }));
}

// torchrun's agent keeps the store, even over restarts of the ranks.
TEST(World, MeetsInAnAgentsStoreAgainAfterARestart) {
  const int port = test::free_port();
  expect_all_ok(run_processes(5, [&](int index, Rank&) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.isServer = index == 4;
    options.waitWorkers = false;
    if (index == 4) {
      c10d::TCPStore agent("127.0.0.1", options);
      for (int rank = 0; rank < 4; ++rank) {
        agent.wait({c10::str("ended/", rank)}, 20s);
      }
      return;
    }
    const int rank = index % 2;
    const int attempt = index / 2;
    c10d::TCPStore client("127.0.0.1", options);
    if (attempt == 1) {
      client.wait({"ended/0", "ended/1"}, 20s);
    }
    Variables variables = torchrun_variables(rank, 2, port);
    variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(attempt);
    set_environment(variables);
    World world = World::from_environment(test::test_world_options());
    EXPECT_EQ(world.rank(), rank);
    world.barrier();
    world.close();
    client.add(c10::str("ended/", index), 1);
  }));
}

// The ranks of one start by torchrun.
struct Start {
  std::vector<int> restart_counts;  // By rank.
  int late_rank = -1;
};

// An agent keeps the store while all ranks of each start meet, work and end, the
// last ones in order and the others without a word to anybody.
void start_one_after_another(const std::vector<Start>& starts) {
  const int port = test::free_port();
  struct Child {
    std::size_t start;
    int rank;
  };
  std::vector<Child> children;
  for (std::size_t s = 0; s < starts.size(); ++s) {
    for (std::size_t r = 0; r < starts[s].restart_counts.size(); ++r) {
      children.push_back({s, static_cast<int>(r)});
    }
  }
  const auto agent = static_cast<int>(children.size());
  const auto await_end = [&](c10d::Store& store, std::size_t start) {
    const auto size = static_cast<int>(starts[start].restart_counts.size());
    while (store.add(str("ended/", start), 0) < size) {
      test::be_late(5ms);
    }
  };
  expect_all_ok(run_processes(agent + 1, [&](int index, Rank&) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(port);
    options.isServer = index == agent;
    options.waitWorkers = false;
    c10d::TCPStore store("127.0.0.1", options);
    if (index == agent) {
      await_end(store, starts.size() - 1);
      return;
    }
    const auto [s, rank] = children[static_cast<std::size_t>(index)];
    const auto& counts = starts[s].restart_counts;
    const auto size = static_cast<int>(counts.size());
    if (s > 0) {
      await_end(store, s - 1);
    }
    test::be_late(rank == starts[s].late_rank ? 200ms : 0ms);
    Variables variables = torchrun_variables(rank, size, port);
    variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
    variables["TORCHELASTIC_RESTART_COUNT"] =
        std::to_string(counts[static_cast<std::size_t>(rank)]);
    set_environment(variables);
    World world = World::from_environment(test::test_world_options());
    EXPECT_EQ(
        world.all_gather({static_cast<double>(s)}),
        std::vector<std::vector<double>>(
            counts.size(), {static_cast<double>(s)}));
    if (s + 1 == starts.size()) {
      world.close();
    }
    store.add(str("ended/", s), 1);
  }));
}

// Each node's agent counts the failures of its own ranks.
TEST(World, MeetsAgainAfterAFailureOnOneNode) {
  start_one_after_another({{{0, 0}}, {{0, 1}}, {{1, 1}}});
  start_one_after_another({{{0, 0}}, {{0, 1}, 0}, {{1, 1}, 1}});
}

// Nodes that come or go count nowhere.
TEST(World, MeetsAgainWithEqualCountsAfterAWorldThatWasNotClosed) {
  start_one_after_another({{{0, 0}}, {{0, 0}, 0}, {{0, 0}, 1}});
  start_one_after_another({{{0, 0}}, {{0, 0, 0}, 0}, {{0, 0}}});
}

// Init, work, close, and again, with ranks that are late where it may matter.
// Handles of the worlds before, and their connections, are still there.
void make_worlds(int rank, int size, const Variables& variables) {
  set_environment(variables);
  std::vector<std::shared_ptr<world::Transport>> kept;
  for (int i = 0; i < 3; ++i) {
    World world = World::from_environment(test::test_world_options());
    const auto comm = kept.emplace_back(
        world::make_c10d_transport(world, "c", Mesh(world).shard_ranks()));
    const auto all = world.all_gather({100.0 * i + rank});
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(all[static_cast<std::size_t>(r)][0], 100.0 * i + r);
    }
    world::Collectives(*comm, "work")
        .all_gather_texts("")
        .status()
        .throw_if_failed();
    test::be_late(rank == i % size ? 30ms : 0ms);
    world.close();
    test::be_late(rank == (i + 1) % size ? 30ms : 0ms);
  }
}

TEST(World, IsMadeAgainOnceTheFirstIsClosed) {
  for (const int w : {1, 2, 3}) {
    const int port = test::free_port();
    expect_all_ok(run_processes(w, [&](int rank, Rank&) {
      make_worlds(rank, w, torchrun_variables(rank, w, port));
    }));
  }
}

// The agent's store keeps the keys of the earlier worlds.
TEST(World, IsMadeAgainInAnAgentsStoreOnceTheFirstIsClosed) {
  for (const int w : {2, 3}) {
    const int port = test::free_port();
    expect_all_ok(run_processes(w + 1, [&](int rank, Rank&) {
      c10d::TCPStoreOptions options;
      options.port = static_cast<std::uint16_t>(port);
      options.isServer = rank == w;
      options.waitWorkers = false;
      c10d::TCPStore store("127.0.0.1", options);
      if (rank == w) {
        for (int r = 0; r < w; ++r) {
          store.wait({c10::str("ended/", r)}, 20s);
        }
        return;
      }
      auto variables = torchrun_variables(rank, w, port);
      variables["TORCHELASTIC_USE_AGENT_STORE"] = "True";
      make_worlds(rank, w, variables);
      // While one is open, no other can be created next to it.
      World open = World::from_environment(test::test_world_options());
      open.barrier();
      EXPECT_THAT(
          error_of(test::test_world_options()).what(),
          HasSubstr("was its earlier World not closed?"));
      open.close();
      store.add(c10::str("ended/", rank), 1);
    }));
  }
}

TEST(World, NamesAPortThatIsInUse) {
  const int fd = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  socklen_t length = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(fd, any, length), 0);
  ASSERT_EQ(::listen(fd, 8), 0);
  ASSERT_EQ(::getsockname(fd, any, &length), 0);
  const int port = ntohs(address.sin6_port);
  const RankReport report = run_processes(
      2,
      [&](int rank, Rank&) {
        set_environment(torchrun_variables(rank, 2, port));
        const Error error =
            error_of({.deadline = 5s, .rendezvous_deadline = 1s});
        if (rank == 0) {
          EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
          EXPECT_THAT(
              error.what(),
              AllOf(
                  HasSubstr("rank 0"),
                  HasSubstr("port " + std::to_string(port)),
                  HasSubstr("in use")));
        } else {
          EXPECT_THAT(error.what(), HasSubstr("rank 0"));
        }
      },
      {.timeout = 20s});
  ::close(fd);
  expect_all_ok(report);
}

// The port is free, and nobody else is to blame. The address is one of those for documents.
TEST(World, Rank0SaysThatMasterAddrIsNotItsOwn) {
  const int port = test::free_port();
  expect_all_ok(run_processes(1, [&](int, Rank&) {
    auto variables = torchrun_variables(0, 2, port);
    variables["MASTER_ADDR"] = "203.0.113.1";
    set_environment(variables);
    const SteadyClock clock;
    const Instant began = clock.now();
    const Error error = error_of({.deadline = 5s, .rendezvous_deadline = 1s});
    EXPECT_LT(clock.now() - began, 5s);
    EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr("rank 1 did not arrive"),
            HasSubstr("MASTER_ADDR 203.0.113.1"), HasSubstr("lo (127.0.0.1)"),
            Not(HasSubstr("in use"))));
  }));
}

TEST(World, MeetsAtAnAddressInBrackets) {
  const int port = test::free_port();
  expect_all_ok(run_processes(2, [&](int index, Rank&) {
    auto variables = torchrun_variables(index, 2, port);
    variables["MASTER_ADDR"] = "[::ffff:127.0.0.1]";
    set_environment(variables);
    World world = World::from_environment(test::test_world_options());
    EXPECT_EQ(world.impl()->master_addr, "::ffff:127.0.0.1");
    world.barrier();
    world.close();
  }));
}

TEST(World, SaysOnEveryRankWhoDisagreesOnTheSize) {
  struct Case {
    std::vector<int> sizes;  // Indexed by rank.
    int odd_rank;
  };
  for (const Case& c :
       {Case{{2, 3}, 1}, Case{{3, 4, 3}, 1}, Case{{4, 4, 3, 4}, 2}}) {
    const int port = test::free_port();
    const auto count = static_cast<int>(c.sizes.size());
    expect_all_ok(run_processes(count, [&](int rank, Rank&) {
      const auto at = [&](int r) {
        return c.sizes[static_cast<std::size_t>(r)];
      };
      set_environment(torchrun_variables(rank, at(rank), port));
      const Error error = error_of(test::test_world_options());
      EXPECT_EQ(error.code(), ErrorCode::kPeerMismatch);
      EXPECT_THAT(
          error.what(),
          HasSubstr(
              str("ranks disagree on the world size: rank 0 says ", at(0),
                  ", rank ", c.odd_rank, " says ", at(c.odd_rank))));
    }));
  }
}

TEST(World, NamesTheRanksThatDoNotArrive) {
  const int port = test::free_port();
  expect_all_ok(run_processes(2, [&](int index, Rank&) {
    const int rank = index == 0 ? 0 : 2;
    set_environment(torchrun_variables(rank, 4, port));
    const Error error = error_of({.deadline = 5s, .rendezvous_deadline = 3s});
    EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(
        error.what(),
        HasSubstr("expected 4 ranks within 3 s, found 2: ranks 1, 3 did not "
                  "arrive"));
  }));
}

TEST(World, NamesRank0WhenItDoesNotArrive) {
  const int port = test::free_port();
  expect_all_ok(run_processes(1, [&](int, Rank&) {
    set_environment(torchrun_variables(1, 2, port));
    const Error error = error_of({.deadline = 5s, .rendezvous_deadline = 1s});
    EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr("rank 0 did not arrive"),
            HasSubstr("127.0.0.1:" + std::to_string(port))));
  }));
}

TEST(World, NoticesThatTheKeeperOfTheStoreDiesWhileRanksMeet) {
  const int port = test::free_port();
  const RankReport report = run_processes(
      2,
      [&](int rank, Rank& self) {
        set_environment(torchrun_variables(rank, 3, port));
        if (rank == 0) {
          c10d::TCPStoreOptions options;
          options.port = static_cast<std::uint16_t>(port);
          options.isServer = true;
          options.waitWorkers = false;
          c10d::TCPStore store("127.0.0.1", options);
          store.wait({"sherd-world/sherd/rank/1"}, 20s);
          self.reach("here");
        }
        const Error error = error_of(test::test_world_options());
        EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
        EXPECT_THAT(error.what(), HasSubstr("rank 0"));
      },
      {.strikes = {{.child = 0, .point = "here", .signal = SIGKILL}}});
  EXPECT_EQ(report[0].signal, SIGKILL) << report[0].output;
  EXPECT_EQ(report[1].exit_code, 0) << report[1].output;
}

TEST(World, RefusesASecondProcessOfOneRank) {
  const RankReport report = run_ranks(2, [](World world) {
    if (world.rank() == 1) {
      try {
        World::from_store(world.impl()->store, 1, 2, world.options());
        ADD_FAILURE() << "a second rank 1";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kPeerMismatch);
        EXPECT_THAT(error.what(), HasSubstr("a second rank 1"));
      }
    }
  });
  expect_all_ok(report);
}

// As where two hosts have the same node rank.
TEST(World, TellsARankWhoseMissingPeerCameUnderItsOwnNumber) {
  const auto record_on = [](const char* hostname) {
    return world::RankRecord::of_this_process(0, 2, -1, {.hostname = hostname});
  };
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::string error_of_first;
  std::jthread first([&] {
    error_of_first = test::error_of(
        [&] { world::rendezvous(*store, record_on("node0"), 500ms); });
  });
  ASSERT_TRUE(world::wait_for_key(*store, "sherd/rank/0", 5s));
  EXPECT_THAT(
      test::error_of(
          [&] { world::rendezvous(*store, record_on("node1"), 500ms); }),
      AllOf(
          HasSubstr("found a second rank 0"), HasSubstr("on node0"),
          HasSubstr("the same node rank")));
  first.join();
  EXPECT_THAT(
      error_of_first,
      HasSubstr("rank 1 did not arrive, but a second rank 0 from node1"));
}

TEST(World, KnowsWhichRanksShareAHost) {
  expect_all_ok(run_ranks(4, [](World outer) {
    // Ranks 0 and 2 are on one host, 1 and 3 on another.
    const int host = outer.rank() % 2;
    World world = world::make_world(
        c10::make_intrusive<c10d::PrefixStore>("in", outer.impl()->store),
        outer.rank(), 4, outer.options(),
        {.hostname = "vm", .boot_id = str("boot-", host)}, "127.0.0.1");
    EXPECT_EQ(world.local_size(), 2);
    EXPECT_EQ(world.local_rank(), outer.rank() / 2);
    const int near = (outer.rank() + 2) % 4;
    const int far = (outer.rank() + 1) % 4;
    EXPECT_TRUE(world.impl()->watch->watches(near));
    EXPECT_FALSE(world.impl()->watch->watches(far));
    world.barrier();
    world.close();
  }));
}

TEST(World, GathersTextsOfAnyLength) {
  const auto text_of = [](int rank) {
    return rank == 1 ? std::string()
                     : std::string(3, '\0') + str(rank) + "\xff";
  };
  for (const int ranks : {1, 3}) {
    expect_all_ok(run_ranks(ranks, [&](World world) {
      const auto all = world.all_gather_texts(text_of(world.rank()));
      ASSERT_EQ(all.size(), static_cast<std::size_t>(world.size()));
      for (int rank = 0; rank < world.size(); ++rank) {
        EXPECT_EQ(all[static_cast<std::size_t>(rank)], text_of(rank));
      }
    }));
  }
}

TEST(World, RefusesOptionsThatCannotWork) {
  EXPECT_THROW(World::from_environment({.deadline = 0ms}), Error);
  EXPECT_THROW(World::from_store(nullptr, 2, 2), Error);
  EXPECT_THROW(World::from_store(nullptr, -1, 2), Error);
  EXPECT_THROW(World::from_store(nullptr, 0, 2), Error);
}

TEST(World, NamesItselfAndAProfileThatWereMovedFrom) {
  auto first = World::single();
  const auto second = std::move(first);
  // NOLINTBEGIN(bugprone-use-after-move): this is what is tested.
  EXPECT_THAT(
      test::error_of([&] { (void)first.rank(); }),
      HasSubstr("[world] World was moved from"));
  EXPECT_THAT(
      test::error_of([&] { set_flight_folder(first, "folder"); }),
      HasSubstr("[world] World was moved from"));
  Profile profile(second);
  const auto moved = std::move(profile);
  EXPECT_THAT(
      test::error_of([&] { profile.write("folder"); }),
      HasSubstr("[world] Profile was moved from"));
  // NOLINTEND(bugprone-use-after-move)
}

}  // namespace
}  // namespace sherd
