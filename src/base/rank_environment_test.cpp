// SPDX-License-Identifier: Apache-2.0
#include "base/rank_environment.h"

#include <map>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

EnvironmentLookup lookup_in(const Variables& variables) {
  return [variables](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt
                                    : std::optional<std::string>(found->second);
  };
}

RankEnvironment read(const Variables& variables) {
  return read_rank_environment(lookup_in(variables));
}

// The sentence of the error, or "" if there was none.
std::string refusal(const Variables& variables) {
  try {
    read(variables);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

Variables with(Variables base, const Variables& changes) {
  for (const auto& [name, value] : changes) {
    base[name] = value;
  }
  return base;
}

Variables without(Variables base, const std::string& name) {
  base.erase(name);
  return base;
}

const Variables kTorchrun = {
    {"RANK", "5"},
    {"WORLD_SIZE", "8"},
    {"LOCAL_RANK", "1"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"MASTER_ADDR", "node0"},
    {"MASTER_PORT", "29511"}};

const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "3"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
    {"PMIX_NAMESPACE", "prterun-host-77@1"}};

const Variables kSlurm = {
    {"SLURM_PROCID", "3"},
    {"SLURM_NTASKS", "4"},
    {"SLURM_LOCALID", "1"},
    {"SLURM_NODEID", "1"},
    {"SLURM_TASKS_PER_NODE", "2(x2)"},
    {"SLURM_JOB_ID", "4242"},
    {"SLURM_STEP_ID", "0"},
    {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"},
    {"SLURM_JOB_NODELIST", "gpu[03-04]"}};

TEST(RankEnvironment, NothingSetIsOneRank) {
  const RankEnvironment env = read({});
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.world_size, 1);
  EXPECT_EQ(env.local_rank, 0);
  EXPECT_EQ(env.local_world_size, 1);
  EXPECT_FALSE(env.agent_store);
  EXPECT_EQ(env.source, "none");
}

TEST(RankEnvironment, ReadsTorchrunVariables) {
  const RankEnvironment env = read(kTorchrun);
  EXPECT_EQ(env.rank, 5);
  EXPECT_EQ(env.world_size, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.master_addr, "node0");
  EXPECT_EQ(env.master_port, 29511);
  EXPECT_FALSE(env.agent_store);
  EXPECT_EQ(env.source, "torchrun variables");
  EXPECT_TRUE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}))
                  .agent_store);
}

TEST(RankEnvironment, LocalVariablesDefaultToOneHost) {
  const RankEnvironment env =
      read(without(without(kTorchrun, "LOCAL_RANK"), "LOCAL_WORLD_SIZE"));
  EXPECT_EQ(env.local_rank, 5);
  EXPECT_EQ(env.local_world_size, 8);
}

TEST(RankEnvironment, HalfOfSeveralHostsIsRefused) {
  EXPECT_THAT(
      refusal(without(kTorchrun, "LOCAL_WORLD_SIZE")),
      AllOf(HasSubstr("LOCAL_WORLD_SIZE"), HasSubstr("unset")));
  EXPECT_THAT(
      refusal(without(kTorchrun, "LOCAL_RANK")),
      AllOf(HasSubstr("expected LOCAL_RANK"), HasSubstr("unset")));
}

TEST(RankEnvironment, OneRankNeedsNoMaster) {
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1);
}

TEST(RankEnvironment, PartialTorchrunVariablesNameWhatIsMissing) {
  EXPECT_THAT(
      refusal(without(kTorchrun, "WORLD_SIZE")),
      HasSubstr("expected WORLD_SIZE to be set because RANK is"));
  EXPECT_THAT(
      refusal(without(kTorchrun, "RANK")),
      HasSubstr("expected RANK to be set because WORLD_SIZE is"));
  EXPECT_THAT(
      refusal(without(kTorchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR"));
  EXPECT_THAT(
      refusal(without(kTorchrun, "MASTER_PORT")), HasSubstr("MASTER_PORT"));
}

TEST(RankEnvironment, MalformedValuesAreNamedWithWhatWasFound) {
  const auto refused = [](const char* name, const char* value) {
    return refusal(with(kTorchrun, {{name, value}}));
  };
  EXPECT_THAT(
      refused("RANK", "8"),
      AllOf(HasSubstr("RANK"), HasSubstr("from 0 to 7"), HasSubstr("'8'")));
  EXPECT_THAT(refused("RANK", "-1"), HasSubstr("'-1'"));
  EXPECT_THAT(refused("RANK", "1x"), HasSubstr("'1x'"));
  EXPECT_THAT(refused("RANK", " 1"), HasSubstr("' 1'"));
  EXPECT_THAT(refused("WORLD_SIZE", "0"), HasSubstr("of at least 1"));
  EXPECT_THAT(refused("WORLD_SIZE", "99999999999"), HasSubstr("WORLD_SIZE"));
  EXPECT_THAT(refused("LOCAL_RANK", "4"), HasSubstr("from 0 to 3"));
  EXPECT_THAT(refused("LOCAL_WORLD_SIZE", "9"), HasSubstr("from 1 to 8"));
  EXPECT_THAT(refused("MASTER_PORT", "0"), HasSubstr("from 1 to 65535"));
  EXPECT_THAT(refused("MASTER_PORT", "65536"), HasSubstr("'65536'"));
  EXPECT_THAT(refused("MASTER_PORT", "http"), HasSubstr("'http'"));
}

TEST(RankEnvironment, AFakeHostIsANumberBelowTheRanks) {
  EXPECT_EQ(read(kTorchrun).fake_host, std::nullopt);
  EXPECT_EQ(read(with(kTorchrun, {{"SHERD_FAKE_HOST", "3"}})).fake_host, 3);
  const auto refused = [](const char* value) {
    return refusal(with(kTorchrun, {{"SHERD_FAKE_HOST", value}}));
  };
  EXPECT_THAT(
      refused("8"),
      AllOf(
          HasSubstr("SHERD_FAKE_HOST"), HasSubstr("from 0 to 7"),
          HasSubstr("'8'")));
  EXPECT_THAT(refused("node1"), HasSubstr("'node1'"));
}

TEST(RankEnvironment, ReplicasHaveFoldersOfTheirOwnForRecords) {
  EXPECT_EQ(read(kTorchrun).flight_folder, "");
  const auto recorded = with(kTorchrun, {{"SHERD_FLIGHT_DIR", "a/flight"}});
  EXPECT_EQ(read(recorded).flight_folder, "a/flight");
  EXPECT_EQ(
      read(with(recorded, {{"SHERD_REPLICA", "2"}})).flight_folder,
      "a/flight/replica-2");
  EXPECT_EQ(
      read(with(recorded, {{"SHERD_SPARE", "17"}, {"SHERD_SPARE_GROUP", "4"}}))
          .flight_folder,
      "a/flight/spare-4");
}

TEST(RankEnvironment, OpenMpiRanksAgreeOnAPortWithoutTalking) {
  const RankEnvironment env = read(kOpenMpi);
  EXPECT_EQ(env.rank, 1);
  EXPECT_EQ(env.world_size, 3);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 3);
  EXPECT_EQ(env.master_addr, "127.0.0.1");
  EXPECT_GE(env.master_port, 20000);
  EXPECT_LE(env.master_port, 29999);
  EXPECT_EQ(env.source, "Open MPI");

  const RankEnvironment peer = read(with(
      kOpenMpi,
      {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}));
  EXPECT_EQ(peer.master_port, env.master_port);
  const RankEnvironment other_job =
      read(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-host-78@1"}}));
  EXPECT_NE(other_job.master_port, env.master_port);
}

TEST(RankEnvironment, OpenMpiOverHostsNeedsTheMasterNamed) {
  const Variables hosts = with(
      kOpenMpi,
      {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_THAT(refusal(hosts), HasSubstr("expected MASTER_ADDR"));
  EXPECT_EQ(read(with(hosts, {{"MASTER_ADDR", "node7"}})).master_addr, "node7");
  EXPECT_THAT(
      refusal(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")),
      HasSubstr("expected OMPI_COMM_WORLD_SIZE"));
}

TEST(RankEnvironment, TorchrunWinsOverOpenMpiOverSlurm) {
  EXPECT_EQ(
      read(with(kTorchrun, with(kOpenMpi, kSlurm))).source,
      "torchrun variables");
  EXPECT_EQ(read(with(kOpenMpi, kSlurm)).source, "Open MPI");
}

TEST(RankEnvironment, ReadsSlurmOverSeveralNodes) {
  const RankEnvironment env = read(kSlurm);
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.world_size, 4);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 2);
  EXPECT_EQ(env.master_addr, "gpu03");
  EXPECT_GE(env.master_port, 20000);
  EXPECT_LE(env.master_port, 29999);
  EXPECT_EQ(env.source, "Slurm");
  EXPECT_NE(
      read(with(kSlurm, {{"SLURM_JOB_ID", "4243"}})).master_port,
      env.master_port);
}

TEST(RankEnvironment, SlurmMasterIsTheFirstNodeWhereThatIsPlain) {
  const auto master = [](const char* nodes) {
    return read(with(kSlurm, {{"SLURM_JOB_NODELIST", nodes}})).master_addr;
  };
  EXPECT_EQ(master("a,b"), "a");
  EXPECT_EQ(master("a"), "a");
  EXPECT_EQ(master("gpu[7,9]"), "gpu7");
  EXPECT_EQ(master("gpu[007-009],cpu[1-2]"), "gpu007");
  EXPECT_EQ(master("r[1-2]n[3-4]"), "10.0.0.9");  // Not plain: srun's host.
  EXPECT_EQ(master("gpu[1-2"), "10.0.0.9");
  EXPECT_EQ(master("gpu[]"), "10.0.0.9");
  EXPECT_THAT(
      refusal(without(
          with(kSlurm, {{"SLURM_JOB_NODELIST", "r[1-2]n[3-4]"}}),
          "SLURM_LAUNCH_NODE_IPADDR")),
      HasSubstr("expected MASTER_ADDR"));
}

TEST(RankEnvironment, SlurmTasksPerNodeIsReadForThisNode) {
  const auto local = [](const char* node, const char* tasks) {
    return read(with(
                    kSlurm,
                    {{"SLURM_NTASKS", "7"},
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_NODEID", node},
                     {"SLURM_TASKS_PER_NODE", tasks}}))
        .local_world_size;
  };
  EXPECT_EQ(local("0", "2(x3),1"), 2);
  EXPECT_EQ(local("3", "2(x3),1"), 1);
  EXPECT_EQ(local("0", "7"), 7);
  EXPECT_EQ(local("0", "x(y"), 7);  // Malformed: as if unset.
  EXPECT_EQ(local("0", "2(x99999999)"), 7);
  const Variables asked = with(
      without(kSlurm, "SLURM_TASKS_PER_NODE"),
      {{"SLURM_NTASKS_PER_NODE", "2"}});
  EXPECT_EQ(read(asked).local_world_size, 2);
}

TEST(RankEnvironment, SlurmOnOneNodeMeetsOnLoopback) {
  const RankEnvironment env = read(
      with(kSlurm, {{"SLURM_NODEID", "0"}, {"SLURM_TASKS_PER_NODE", "4"}}));
  EXPECT_EQ(env.master_addr, "127.0.0.1");
}

TEST(RankEnvironment, SlurmShellsAndBatchScriptsAreNotRanks) {
  EXPECT_EQ(read(without(kSlurm, "SLURM_PROCID")).source, "none");
  const Variables batch = with(
      without(kSlurm, "SLURM_STEP_ID"),
      {{"ENVIRONMENT", "BATCH"}, {"SLURM_PROCID", "0"}});
  EXPECT_EQ(read(batch).world_size, 1);
  // What srun starts from that script inherits ENVIRONMENT and is a rank.
  EXPECT_EQ(read(with(batch, {{"SLURM_STEP_ID", "0"}})).world_size, 4);
  EXPECT_EQ(
      read(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}})).world_size, 1);
  const RankEnvironment one = read(
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_LOCALID", "0"}});
  EXPECT_EQ(one.world_size, 1);
  EXPECT_EQ(one.local_world_size, 1);
}

TEST(RankEnvironment, MalformedSlurmVariablesAreRefused) {
  EXPECT_THAT(
      refusal(without(kSlurm, "SLURM_NTASKS")),
      HasSubstr("expected SLURM_NTASKS"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_PROCID", "4"}})), HasSubstr("'4'"));
  EXPECT_THAT(
      refusal(with(kSlurm, {{"SLURM_LOCALID", "2"}})),
      HasSubstr("SLURM_LOCALID"));
}

TEST(RankEnvironment, MasterVariablesWinOverWhatIsDerived) {
  for (const Variables& base : {kOpenMpi, kSlurm}) {
    const RankEnvironment env =
        read(with(base, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "1234"}}));
    EXPECT_EQ(env.master_addr, "head");
    EXPECT_EQ(env.master_port, 1234);
  }
}

TEST(RankEnvironment, ProcessEnvironmentTellsUnsetFromEmpty) {
  const EnvironmentLookup lookup = process_environment();
  EXPECT_TRUE(lookup("PATH").has_value());
  EXPECT_FALSE(lookup("SHERD_NO_SUCH_VARIABLE").has_value());
}

}  // namespace
}  // namespace sherd
