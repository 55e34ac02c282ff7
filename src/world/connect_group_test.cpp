// SPDX-License-Identifier: Apache-2.0
//
// What members of a new group are told when one of them does not come, and groups on several threads.
#include <sched.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/torch.h>
#include "base/check.h"
#include "support/delay.h"
#include "support/error_of.h"
#include "support/ranks.h"
#include "world/transport.h"
#include "world/world_impl.h"

namespace sherd::world {
namespace {

using namespace std::chrono_literals;
using test::expect_all_ok;
using test::RankOptions;
using test::RankReport;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A world of the ranks of `outer` in which each host is what a test says.
World world_on(
    const World& outer, const WorldOptions& options, const HostIdentity& host) {
  static int made = 0;
  return make_world(
      c10::make_intrusive<c10d::PrefixStore>(
          str("inner-", made++), outer.impl()->store),
      outer.rank(), outer.size(), options, host, "127.0.0.1");
}

TEST(Connecting, NamesTheMemberThatDoesNotCome) {
  RankOptions options{.close_world = false};
  options.world.deadline = 3s;
  const RankReport report = run_ranks(
      3,
      [](World world) {
        auto& store = *world.impl()->store;
        if (world.rank() != 2) {
          try {
            const auto comm = make_c10d_transport(world, "c", {0, 1, 2});
            ADD_FAILURE() << "connected without rank 2";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kDeadlineExceeded);
            EXPECT_THAT(
                error.what(), HasSubstr("rank 2 did not join group 'c'"));
          }
          store.set(str("failed ", world.rank()), std::string());
        }
        // No rank ends, and takes the store along, while others still need it.
        store.wait({"failed 0", "failed 1"});
        test::let_others_pass(world, 0);
      },
      options);
  expect_all_ok(report);
}

TEST(Connecting, GloosThreadWaitsForItsTurn) {
  expect_all_ok(run_ranks(2, [](World world) {
    world.barrier();
    int found = 0;
    for (const auto& thread :
         std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(thread.path() / "comm"), name);
      if (name == "gloo_tcp_loop") {
        ++found;
        EXPECT_EQ(
            ::sched_getscheduler(std::stoi(thread.path().filename().string())),
            SCHED_BATCH);
      }
    }
    EXPECT_GT(found, 0);
    EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
    world.barrier();
  }));
}

// Rank 1 has given up because of rank 2, and its process lives on.
TEST(Connecting, NamesWhatMadeAMemberGiveUp) {
  expect_all_ok(run_ranks(3, [](World outer) {
    std::optional<World> world = make_world(
        c10::make_intrusive<c10d::PrefixStore>("inner", outer.impl()->store),
        outer.rank(), outer.size(), outer.options(),
        HostIdentity::of_this_process(), "127.0.0.1");
    outer.barrier();  // All watch each other.
    auto& store = *outer.impl()->store;
    if (outer.rank() == 1) {
      world->impl()->watch->report({2, "stood still"});
      world.reset();
      store.set("given up", std::string());
    } else if (outer.rank() == 0) {
      store.wait({"given up"});
      std::string error;
      try {
        make_c10d_transport(*world, "c", {0, 1});
      } catch (const Error& caught) {
        error = caught.what();
      }
      EXPECT_THAT(
          error,
          HasSubstr("rank 2 was lost: it stood still; rank 0 waited for group "
                    "'c' with rank 1"));
    }
    outer.barrier();
  }));
}

// A store in which keys that contain `late` appear late.
class StoreWithLateKeys final : public c10d::PrefixStore {
 public:
  StoreWithLateKeys(c10::intrusive_ptr<c10d::Store> store, std::string late)
      : PrefixStore("inner", std::move(store)), late_(std::move(late)) {}

  void set(
      const std::string& key, const std::vector<std::uint8_t>& value) override {
    if (key.find(late_) != std::string::npos) {
      test::be_late(200ms);
    }
    PrefixStore::set(key, value);
  }

 private:
  std::string late_;
};

// Rank 0 is late in the first subset and rank 1 in the second one. Thus each rank waits for a key in
// one subset, and its own key for which the other rank waits in the other subset must go out
// meanwhile, through the same store.
TEST(Connecting, OverTwoSubsetsOnTwoThreadsInAnyOrder) {
  expect_all_ok(run_ranks(2, [](World outer) {
    const World world = make_world(
        c10::make_intrusive<StoreWithLateKeys>(
            outer.impl()->store,
            str("subset/0,1/", outer.rank(), "/group/world/")),
        outer.rank(), outer.size(), outer.options(),
        HostIdentity::of_this_process(), "127.0.0.1");
    const std::vector<World> subsets{
        world.subset({0, 1}), world.subset({0, 1})};
    std::vector<std::jthread> threads;
    threads.reserve(subsets.size());
    for (const World& subset : subsets) {
      threads.emplace_back([&subset] {
        EXPECT_EQ(test::error_of([&] { subset.barrier(); }), "no error");
      });
    }
    threads.clear();
    outer.barrier();
  }));
}

TEST(Connecting, NamesTheInterfacesInsteadOfOneThatCannotBeUsed) {
  expect_all_ok(run_ranks(2, [](World outer) {
    for (const std::string wrong : {"none9", "lo"}) {
      auto options = outer.options();
      options.network_interface = wrong;
      const World world =
          world_on(outer, options, {.hostname = str("host-", outer.rank())});
      EXPECT_THAT(
          test::error_of([&] { world.barrier(); }),
          AllOf(
              HasSubstr("network_interface: expected"),
              HasSubstr("found '" + wrong + "'"), HasSubstr("lo (127.0.0.1)")));
      outer.barrier();
    }
  }));
}

TEST(Connecting, OverTheLoopbackInterfaceBetweenHostsThatAreInvented) {
  expect_all_ok(run_ranks(2, [](World outer) {
    auto options = outer.options();
    options.network_interface = "lo";
    auto host = HostIdentity::of_this_process();
    host.fake = str(outer.rank());
    World world = world_on(outer, options, host);
    world.barrier();
    world.close();
  }));
}

// Containers of one machine that were given the same host name.
TEST(Connecting, RanksWithNetworksOfTheirOwnDoNotUseTheLoopbackAddress) {
  expect_all_ok(run_ranks(3, [](World outer) {
    const std::string network = outer.rank() == 2 ? "b" : "a";
    World world = world_on(
        outer, outer.options(),
        {.hostname = "vm", .boot_id = "boot", .net_namespace = network});
    EXPECT_EQ(world.local_size(), 3);
    world.barrier();
    EXPECT_EQ(world.impl()->device_of_host, nullptr);
    EXPECT_NE(world.impl()->device_between_hosts, nullptr);
    if (outer.rank() != 2) {
      const auto pair = make_c10d_transport(world, "pair", {0, 1});
      EXPECT_NE(world.impl()->device_of_host, nullptr);
    }
    world.close();
  }));
}

TEST(Connecting, AcrossHostsTakesNoLoopbackAddressFromTheNameOfAHost) {
  const auto record = [](const std::string& host, const std::string& address) {
    return RankRecord{.host = {.hostname = host, .address = address}};
  };
  const std::string name = "node0";  // 127.0.1.1 on node0 itself.
  const std::vector<RankRecord> records{
      record("node0", "127.0.0.1"), record("node0", "127.0.0.1"),
      record("node1", "10.0.0.2"), record("node2", "10.0.0.3")};
  EXPECT_EQ(host_that_reaches(records, 0, name), "10.0.0.2");
  EXPECT_EQ(host_that_reaches(records, 1, name), "10.0.0.2");
  EXPECT_EQ(host_that_reaches(records, 2, name), name);
  // Forwarded ports, unknown addresses, and a single host.
  EXPECT_EQ(
      host_that_reaches(
          {record("a", "127.0.0.1"), record("b", "::1"), record("c", "")}, 0,
          name),
      name);
  EXPECT_EQ(host_that_reaches({record("a", "")}, 0, name), name);
}

TEST(Connecting, HearsAtOnceThatAMemberOnAnotherHostGaveUp) {
  expect_all_ok(run_ranks(2, [](World outer) {
    auto options = outer.options();
    options.deadline = 20s;
    options.network_interface = outer.rank() == 1 ? "none9" : "";
    World world =
        world_on(outer, options, {.hostname = str("host-", outer.rank())});
    const std::string error = test::error_of([&] { world.barrier(); });
    if (outer.rank() == 0) {
      EXPECT_THAT(
          error,
          HasSubstr("rank 1 was lost: it gave up: [world] network_interface: "
                    "expected"));
    }
    // Nothing is tried again.
    EXPECT_EQ(test::error_of([&] { world.barrier(); }), error);
    EXPECT_EQ(test::error_of([&] { world.close(); }), error);
    outer.barrier();
  }));
}

TEST(Connecting, HearsAtOnceThatAMemberOnAnotherHostLeft) {
  expect_all_ok(run_ranks(2, [](World outer) {
    auto options = outer.options();
    options.deadline = 20s;
    std::optional<World> world =
        world_on(outer, options, {.hostname = str("host-", outer.rank())});
    if (outer.rank() == 1) {
      world.reset();
    } else {
      EXPECT_THAT(
          test::error_of([&] { world->barrier(); }),
          HasSubstr("rank 1 was lost: it left the job; rank 0 waited for group "
                    "'world' with it; rank 1 is on host-1"));
    }
    outer.barrier();
  }));
}

TEST(Connecting, RefusesWhatCannotBe) {
  expect_all_ok(run_ranks(2, [](World world) {
    const auto once = make_c10d_transport(world, "c", {0, 1});
    EXPECT_THROW(make_c10d_transport(world, "c", {0, 1}), Error);
    EXPECT_THROW(make_c10d_transport(world, "d", {1, 0}), Error);
    EXPECT_THROW(make_c10d_transport(world, "e", {0, 2}), Error);
    EXPECT_THROW(make_c10d_transport(world, "f", {1 - world.rank()}), Error);
    EXPECT_THROW(make_c10d_transport(world, "g", {}), Error);
    EXPECT_THROW(once->send(torch::ones({4}), world.rank(), 0), Error);
    EXPECT_THROW(once->send(torch::ones({4}), 2, 0), Error);
    EXPECT_THROW(once->send(torch::ones({4}), 1 - world.rank(), -1), Error);
    EXPECT_THROW(once->send(torch::ones({4}).view({2, 2}).t(), 0, 0), Error);
  }));
}

}  // namespace
}  // namespace sherd::world
