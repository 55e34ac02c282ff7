// SPDX-License-Identifier: Apache-2.0
#include "launch/rank_variables.h"

#include <algorithm>
#include <gtest/gtest.h>
#include "base/rank_environment.h"

namespace sherd::launch {
namespace {

using Strings = std::vector<std::string>;

TEST(RankVariables, AreWhatTheRankReadsBack) {
  const Strings variables = variables_of_rank(
      {"HOME=/root"}, {.rank = 2, .ranks = 3, .port = 20123, .threads = 2});
  const RankEnvironment env = read_rank_environment(
      [&](const char* name) { return find_variable(variables, name); });
  EXPECT_EQ(env.source, "torchrun variables");
  EXPECT_EQ(env.rank, 2);
  EXPECT_EQ(env.world_size, 3);
  EXPECT_EQ(env.local_rank, 2);
  EXPECT_EQ(env.local_world_size, 3);
  EXPECT_EQ(env.master_addr, "127.0.0.1");
  EXPECT_EQ(env.master_port, 20123);
  EXPECT_FALSE(env.agent_store);
  EXPECT_EQ(find_variable(variables, "HOME"), "/root");
}

// As on several hosts: the values that the rank reads are consistent.
TEST(RankVariables, OfFakeHostsAreThoseOfSeveralHosts) {
  std::vector<std::vector<int>> found;
  for (int rank = 0; rank < 7; ++rank) {
    const Strings variables = variables_of_rank(
        {"SHERD_FAKE_HOST=9"},
        {.rank = rank, .ranks = 7, .fake_hosts = 2, .port = 1});
    const RankEnvironment env = read_rank_environment(
        [&](const char* name) { return find_variable(variables, name); });
    found.push_back(
        {env.fake_host.value(), env.local_rank, env.local_world_size});
  }
  const std::vector<std::vector<int>> expected{{0, 0, 4}, {0, 1, 4}, {0, 2, 4},
                                               {0, 3, 4}, {1, 0, 3}, {1, 1, 3},
                                               {1, 2, 3}};
  EXPECT_EQ(found, expected);
}

TEST(RankVariables, ReplaceThoseOfAnEnclosingLauncher) {
  const Strings variables = variables_of_rank(
      {"RANK=9", "TORCHELASTIC_USE_AGENT_STORE=True", "SHERD_FAKE_HOST=1",
       "RANKS=kept"},
      {.rank = 0, .ranks = 1, .port = 1});
  EXPECT_EQ(std::count(variables.begin(), variables.end(), "RANK=9"), 0);
  EXPECT_EQ(find_variable(variables, "RANK"), "0");
  EXPECT_EQ(find_variable(variables, "RANKS"), "kept");
  EXPECT_FALSE(find_variable(variables, "TORCHELASTIC_USE_AGENT_STORE"));
  EXPECT_FALSE(find_variable(variables, "SHERD_FAKE_HOST"));
}

TEST(RankVariables, ThreadsAreAShareOfTheCoresUnlessTheUserSaysOtherwise) {
  const auto threads = [](const Strings& base, int share) {
    return find_variable(
        variables_of_rank(
            base, {.rank = 0, .ranks = 2, .port = 1, .threads = share}),
        "OMP_NUM_THREADS");
  };
  EXPECT_EQ(threads({}, 4), "4");
  EXPECT_EQ(threads({}, 0), "1");
  EXPECT_EQ(threads({"OMP_NUM_THREADS=5"}, 2), "5");
}

TEST(RankVariables, OfAReplicaNameItAndItsCoordinator) {
  const Strings enclosing = {
      "SHERD_REPLICA=9", "SHERD_SPARE=4", "SHERD_SPARE_GROUP=5",
      "SHERD_SECRET_FILE=/old"};
  const ReplicaVariables replica = {
      .coordinator = "127.0.0.1:777",
      .replica = 2,
      .replicas = 3,
      .secret_file = ""};
  const Strings variables = variables_of_rank(
      enclosing, {.rank = 1, .ranks = 2, .port = 1, .of_replica = replica});
  EXPECT_EQ(find_variable(variables, "SHERD_COORDINATOR"), "127.0.0.1:777");
  EXPECT_EQ(find_variable(variables, "SHERD_REPLICA"), "2");
  EXPECT_EQ(find_variable(variables, "SHERD_REPLICAS"), "3");
  EXPECT_FALSE(find_variable(variables, "SHERD_SPARE"));
  EXPECT_FALSE(find_variable(variables, "SHERD_SPARE_GROUP"));
  EXPECT_FALSE(find_variable(variables, "SHERD_SECRET_FILE"));
  // Without replicas these variables belong to the user.
  const Strings kept =
      variables_of_rank(enclosing, {.rank = 0, .ranks = 1, .port = 1});
  EXPECT_EQ(find_variable(kept, "SHERD_REPLICA"), "9");
}

TEST(RankVariables, KeepTheSecretOfACoordinatorElsewhere) {
  ReplicaVariables replica = {
      .coordinator = "h:1",
      .replica = 0,
      .secret_file = "",
      .keeps_secret = true};
  const auto secret = [&] {
    return find_variable(
        variables_of_rank(
            {"SHERD_SECRET_FILE=/theirs"},
            {.rank = 0, .ranks = 1, .port = 1, .of_replica = replica}),
        "SHERD_SECRET_FILE");
  };
  EXPECT_EQ(secret(), "/theirs");
  replica.secret_file = "/given";
  EXPECT_EQ(secret(), "/given");
}

TEST(RankVariables, OfASpareNameADescriptorInsteadOfAReplica) {
  const Strings variables = variables_of_rank(
      {"SHERD_REPLICA=9"},
      {.rank = 0,
       .ranks = 1,
       .port = 1,
       .of_replica = ReplicaVariables{
           .coordinator = "h:1",
           .replica = {},
           .replicas = 3,
           .samples = 36,
           .secret_file = "/s",
           .spare = 4,
           .spare_fd = 17}});
  EXPECT_EQ(find_variable(variables, "SHERD_SPARE"), "17");
  EXPECT_EQ(find_variable(variables, "SHERD_SPARE_GROUP"), "4");
  EXPECT_FALSE(find_variable(variables, "SHERD_REPLICA"));
  EXPECT_EQ(find_variable(variables, "SHERD_SAMPLES"), "36");
  EXPECT_EQ(find_variable(variables, "SHERD_SECRET_FILE"), "/s");
}

TEST(FindVariable, TellsEmptyFromAbsentAndPrefixFromName) {
  const Strings variables = {"A=", "AB=1", "C=x=y", "D", "A=2"};
  EXPECT_EQ(find_variable(variables, "A"), "");
  EXPECT_EQ(find_variable(variables, "AB"), "1");
  EXPECT_EQ(find_variable(variables, "C"), "x=y");
  EXPECT_FALSE(find_variable(variables, "D"));
  EXPECT_FALSE(find_variable(variables, "B"));
}

}  // namespace
}  // namespace sherd::launch
