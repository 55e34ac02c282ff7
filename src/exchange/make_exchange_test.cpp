// SPDX-License-Identifier: Apache-2.0
#include "exchange/make_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "base/check.h"
#include "base/host.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "world/world_impl.h"

namespace sherd::exchange {
namespace {

using testing::AllOf;
using testing::HasSubstr;

EnvironmentLookup variable(
    std::optional<std::string> value, std::string which = "SHERD_EXCHANGE") {
  return [value, which](const char* name) {
    return name == which ? value : std::nullopt;
  };
}

TEST(MakeExchange, TheOptionThenTheVariableThenTheHostsChoose) {
  test::expect_all_ok(test::run_ranks(2, [](World world) {
    const auto choose = [&](Kind wanted, std::optional<std::string> value) {
      return choose_kind(world, {0, 1}, wanted, variable(std::move(value)));
    };
    EXPECT_EQ(choose(Kind::kAuto, std::nullopt), Kind::kSharedMemory);
    EXPECT_EQ(choose(Kind::kAuto, "auto"), Kind::kSharedMemory);
    EXPECT_EQ(choose(Kind::kAuto, "collective"), Kind::kCollective);
    EXPECT_EQ(choose(Kind::kAuto, "shm"), Kind::kSharedMemory);
    EXPECT_EQ(choose(Kind::kAuto, "hierarchical"), Kind::kHierarchical);
    EXPECT_EQ(choose(Kind::kCollective, "shm"), Kind::kCollective);
    EXPECT_EQ(choose(Kind::kSharedMemory, "collective"), Kind::kSharedMemory);
    EXPECT_EQ(
        test::error_of([&] { (void)choose(Kind::kAuto, "nccl"); }),
        "[exchange] SHERD_EXCHANGE is \"nccl\"; expected auto, collective, "
        "shm or hierarchical");
  }));
}

TEST(MakeExchange, HostsAreWhatAutoLooksAt) {
  test::expect_all_ok(test::run_ranks(3, [](World outer) {
    // Ranks 0 and 2 on one host, 1 on another.
    World world = world::make_world(
        c10::make_intrusive<c10d::PrefixStore>("in", outer.impl()->store),
        outer.rank(), 3, outer.options(),
        {.hostname = "vm", .boot_id = str("boot-", outer.rank() % 2)},
        "127.0.0.1");
    const auto chosen = [&](const std::vector<int>& ranks) {
      return choose_kind(world, ranks, Kind::kAuto, variable(std::nullopt));
    };
    EXPECT_EQ(chosen({0, 1, 2}), Kind::kHierarchical);
    EXPECT_EQ(chosen({1, 2}), Kind::kCollective);
    EXPECT_EQ(chosen({0, 2}), Kind::kSharedMemory);
    EXPECT_EQ(chosen({1}), Kind::kCollective);
    world.barrier();
    world.close();
  }));
}

// Containers with the host's network have its name, too.
TEST(MakeExchange, RanksThatDoNotShareProcessIdsExchangeByMessages) {
  test::expect_all_ok(test::run_ranks(4, [](World outer) {
    auto host = world::HostIdentity::of_this_process();
    host.pid_namespace += str(" of container ", outer.rank() / 2);
    World world = world::make_world(
        c10::make_intrusive<c10d::PrefixStore>("in", outer.impl()->store),
        outer.rank(), 4, outer.options(), host, "127.0.0.1");
    const auto chosen = [&](const std::vector<int>& ranks) {
      return choose_kind(world, ranks, Kind::kAuto, variable(std::nullopt));
    };
    EXPECT_EQ(chosen({0, 1}), Kind::kSharedMemory);
    EXPECT_EQ(chosen({1, 2}), Kind::kCollective);
    EXPECT_EQ(chosen({0, 1, 2, 3}), Kind::kHierarchical);
    EXPECT_EQ(
        choose_kind_across(world, {1, 2}, Kind::kAuto, variable(std::nullopt)),
        Kind::kCollective);
    world.close();
  }));
}

TEST(MakeExchange, ReplicasOfOneHostShareMemoryUnlessMessagesAreAskedFor) {
  test::RankOptions options;
  options.hosts = {2, 1};
  test::expect_all_ok(test::run_ranks(
      3,
      [](World world) {
        const auto choose = [&](const std::vector<int>& ranks, Kind wanted,
                                std::optional<std::string> value) {
          return choose_kind_across(
              world, ranks, wanted, variable(std::move(value)));
        };
        for (const auto wanted :
             {Kind::kAuto, Kind::kSharedMemory, Kind::kHierarchical}) {
          EXPECT_EQ(choose({0, 1}, wanted, std::nullopt), Kind::kSharedMemory);
          EXPECT_EQ(choose({0, 2}, wanted, std::nullopt), Kind::kCollective);
          EXPECT_EQ(choose({0, 1, 2}, wanted, "shm"), Kind::kCollective);
          EXPECT_EQ(choose({1}, wanted, std::nullopt), Kind::kCollective);
        }
        EXPECT_EQ(choose({0, 1}, Kind::kAuto, "shm"), Kind::kSharedMemory);
        EXPECT_EQ(choose({0, 1}, Kind::kAuto, "collective"), Kind::kCollective);
        EXPECT_EQ(
            choose({0, 1}, Kind::kCollective, std::nullopt), Kind::kCollective);
      },
      options));
}

TEST(MakeExchange, RanksThatChoseDifferentlyAreAllToldSo) {
  test::expect_all_ok(test::run_ranks(3, [](World world) {
    const auto kind =
        world.rank() == 2 ? Kind::kCollective : Kind::kSharedMemory;
    EXPECT_THAT(
        test::error_of(
            [&] { (void)make_exchange(world, "different", {0, 1, 2}, kind); }),
        AllOf(
            HasSubstr("rank 0 exchanges by shared memory, rank 2 by messages"),
            HasSubstr("SHERD_EXCHANGE")));
  }));
}

// As sums_have_a_thread(), with this value of the variable.
bool has_thread(
    int cores, int ranks, int threads, std::optional<std::string> value) {
  return sums_have_a_thread(
      cores, ranks, threads, variable(std::move(value), "SHERD_SUM_THREAD"));
}

TEST(SumThread, NeedsACoreBesideThoseOfOperators) {
  EXPECT_FALSE(has_thread(2, 2, 1, std::nullopt));
  EXPECT_FALSE(has_thread(3, 2, 1, std::nullopt));
  EXPECT_TRUE(has_thread(4, 2, 1, std::nullopt));
  EXPECT_FALSE(has_thread(16, 2, 8, "auto"));
}

TEST(SumThread, IsThereOrNotAsTheVariableSays) {
  EXPECT_TRUE(has_thread(1, 8, 4, "on"));
  EXPECT_FALSE(has_thread(64, 2, 1, "off"));
  EXPECT_THAT(
      test::error_of([] { (void)has_thread(1, 1, 1, "yes"); }),
      HasSubstr("SHERD_SUM_THREAD is \"yes\"; expected auto, on or off"));
}

TEST(SumThread, ThisProcessHasACore) { EXPECT_GE(allowed_cores().size(), 1U); }

}  // namespace
}  // namespace sherd::exchange
