// SPDX-License-Identifier: Apache-2.0
//
// The built `sherd` command, as a user calls it.
#include <filesystem>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/scratch_folder.h"
#include "support/shell_command.h"

namespace sherd {
namespace {

using test::Outcome;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// Runs "sherd <arguments>" through the shell.
Outcome sherd(const std::string& arguments) {
  return test::run_in_shell("'" SHERD_COMMAND "' " + arguments);
}

TEST(Command, HelpAndVersionAreForNewcomers) {
  const Outcome help = sherd("--help");
  EXPECT_EQ(help.exit_status, 0);
  EXPECT_THAT(help.shown, AllOf(HasSubstr("run"), HasSubstr("Examples:")));
  const Outcome run_help = sherd("run --help");
  EXPECT_EQ(run_help.exit_status, 0);
  EXPECT_THAT(
      run_help.shown,
      AllOf(
          HasSubstr("PROGRAM"), HasSubstr("--log-dir"), HasSubstr("--no-bind"),
          HasSubstr("Examples:"), HasSubstr("WORLD_SIZE")));
  EXPECT_THAT(sherd("--version").shown, StartsWith("sherd "));
}

TEST(Command, EachCommandOfReplicasShowsItsExamples) {
  for (const std::string words : {"replica", "replica drain"}) {
    const auto shown = sherd(words + " --help").shown;
    EXPECT_THAT(
        shown, HasSubstr("sherd replica drain 2 --control run/control"));
    EXPECT_THAT(shown, Not(HasSubstr("sherd run -n 4")));
  }
  EXPECT_THAT(sherd("--help").shown, HasSubstr("sherd replica --help"));
}

TEST(Command, OutputThatIsLostIsAFailure) {
  for (const std::string words :
       {"--version", "simulate --days 0.01 --runs 1", "trace --help",
        "coordinate --help", "run --help", "run -n 2 -- echo out"}) {
    const auto outcome = test::run_in_shell(
        "{ '" SHERD_COMMAND "' " + words + " > /dev/full; }");
    EXPECT_EQ(outcome.exit_status, 1) << words;
    EXPECT_THAT(outcome.shown, HasSubstr("cannot write to standard output"));
  }
}

TEST(Command, ProgramsGetAllTheirArguments) {
  const char* expected = "[rank 0] <-n><7><--port=1><--><--help><a b>\n";
  const std::string print = "printf '<%s>' -n 7 --port=1 -- --help 'a b'";
  const auto shown = [](const std::string& arguments) {
    return sherd(arguments).shown;
  };
  EXPECT_EQ(shown("run -n 1 -- " + print), expected);
  EXPECT_EQ(shown("run -n 1 " + print), expected);
  EXPECT_EQ(shown("run -n1 " + print), expected);
  EXPECT_EQ(shown("run --ranks=1 --no-bind " + print), expected);
  EXPECT_EQ(shown("run --ranks 1 --grace 3 -- " + print), expected);
}

TEST(Command, WrongUsageExitsWithTwoAndSaysWhy) {
  const auto refused = [](const std::string& arguments) {
    const Outcome outcome = sherd(arguments);
    EXPECT_EQ(outcome.exit_status, 2) << arguments << "\n" << outcome.shown;
    return outcome.shown;
  };
  EXPECT_THAT(refused(""), HasSubstr("Usage:"));
  EXPECT_THAT(refused("bogus"), HasSubstr("bogus"));
  EXPECT_THAT(refused("run true"), HasSubstr("--ranks"));
  EXPECT_THAT(refused("run -n 2"), HasSubstr("expected a program"));
  EXPECT_THAT(refused("run -n 2 --"), HasSubstr("expected a program"));
  EXPECT_THAT(refused("run -n 0 true"), HasSubstr("at least 1 rank, found 0"));
  EXPECT_THAT(refused("run -n two true"), HasSubstr("two"));
  EXPECT_THAT(refused("run -n 2 --typo true"), HasSubstr("--typo"));
  EXPECT_THAT(refused("run -n 2 --port 65536 true"), HasSubstr("65536"));
}

TEST(Command, AMisspeltOptionOrCommandGetsTheNearestOne) {
  const auto shown = [](const std::string& arguments) {
    return sherd(arguments).shown;
  };
  EXPECT_EQ(
      shown("run -n 2 --log-dri logs true"),
      "sherd: there is no option --log-dri (did you mean --log-dir?); see "
      "sherd run --help\n");
  EXPECT_EQ(
      shown("coordinate --replica-min=2"),
      "sherd coordinate: there is no option --replica-min (did you mean "
      "--replicas-min?); see sherd coordinate --help\n");
  EXPECT_THAT(shown("replcia"), HasSubstr("'replcia' (did you mean replica?)"));
  EXPECT_THAT(
      shown("replica drian 1"), HasSubstr("'drian' (did you mean drain?)"));
  EXPECT_THAT(shown("bogus"), HasSubstr("command 'bogus'; see sherd --help"));
}

TEST(Command, WrongUsageOfReplicasExitsWithTwoAndSaysWhy) {
  const auto refused = [](const std::string& arguments) {
    const Outcome outcome = sherd(arguments);
    EXPECT_EQ(outcome.exit_status, 2) << arguments << "\n" << outcome.shown;
    return outcome.shown;
  };
  EXPECT_THAT(
      refused("run --replicas 2 true"), HasSubstr("requires --fault-tolerant"));
  EXPECT_THAT(
      refused("run -n 2 --spares 1 true"),
      HasSubstr("--spares requires --fault-tolerant"));
  const std::string on = "run --fault-tolerant ";
  EXPECT_THAT(refused(on + "true"), HasSubstr("expected --replicas R"));
  EXPECT_THAT(
      refused(on + "--replicas 2 -n 2 true"),
      AllOf(HasSubstr("--ranks"), HasSubstr("excludes")));
  EXPECT_THAT(
      refused(on + "--replicas 0 true"),
      HasSubstr("1 to 4096 replicas, found 0"));
  EXPECT_THAT(
      refused(on + "--replicas 2 --ranks-per-replica 0 true"),
      HasSubstr("at least 1 rank, found 0"));
  EXPECT_THAT(
      refused(on + "--replicas 2 --replicas-min 3 true"),
      HasSubstr("from 1 to 2, found 3"));
  EXPECT_THAT(
      refused(on + "--replicas 2 --coordinator a:1 --replicas-min 2 true"),
      AllOf(HasSubstr("--coordinator"), HasSubstr("excludes")));
  EXPECT_THAT(
      refused(on + "--replicas 2 --port 1000 true"),
      HasSubstr("expected no port"));
  EXPECT_THAT(
      refused(on + "--replicas 99999 true"),
      HasSubstr("1 to 4096 replicas, found 99999"));
  EXPECT_THAT(
      refused(on + "--replicas 2 --samples-per-replica 0 true"),
      HasSubstr("--samples-per-replica: expected a number from 1 on, found 0"));
  EXPECT_THAT(
      refused(
          on + "--replicas 2 --samples-per-replica 2 --global-batch 4 true"),
      AllOf(HasSubstr("--global-batch"), HasSubstr("excludes")));
  EXPECT_THAT(
      refused(on + "--replicas 2 --secret-file x --no-secret true"),
      AllOf(HasSubstr("--no-secret"), HasSubstr("excludes")));
  EXPECT_THAT(refused("replica"), HasSubstr("subcommand"));
  EXPECT_THAT(refused("replica drain 1"), HasSubstr("--control"));
}

TEST(Command, ACoordinatorsTimesAreThoseOfRun) {
  const std::string run = "run --fault-tolerant --replicas 2 ";
  // The coordinator refuses it, as it would without `sherd run`.
  const Outcome outcome = sherd(run + "--dead-after 0.1 true");
  EXPECT_EQ(outcome.exit_status, 2) << outcome.shown;
  EXPECT_THAT(outcome.shown, HasSubstr("500 ms or more, found 100"));
  for (const std::string flag :
       {"--start-timeout", "--dead-after", "--hang-after", "--first-hang-after",
        "--hold-time", "--settle", "--left-out-max"}) {
    EXPECT_THAT(sherd(run + flag + " soon true").shown, HasSubstr("soon"))
        << flag;
    EXPECT_THAT(
        sherd(run + "--coordinator a:1 " + flag + " 3 true").shown,
        AllOf(HasSubstr(flag), HasSubstr("excludes")));
    EXPECT_THAT(
        sherd("run -n 2 " + flag + " 3 true").shown,
        HasSubstr("requires --fault-tolerant"));
    for (const char* help : {"run --help", "coordinate --help"}) {
      EXPECT_THAT(sherd(help).shown, HasSubstr(flag + " SECONDS"));
    }
  }
  EXPECT_THAT(
      sherd("run -n 2 --recover-from-replicas true").shown,
      HasSubstr("requires --fault-tolerant"));
}

TEST(Command, ReplicasRunWithACoordinatorElsewhere) {
  const Outcome outcome = sherd(
      "run --fault-tolerant --replicas 2 --ranks-per-replica 2 "
      "--coordinator 127.0.0.1:9 --secret-file key -- "
      "sh -c 'echo $SHERD_REPLICA.$RANK $SHERD_COORDINATOR "
      "$SHERD_SECRET_FILE'");
  EXPECT_EQ(outcome.exit_status, 0);
  for (const char* rank : {"0.0", "0.1", "1.0", "1.1"}) {
    EXPECT_THAT(
        outcome.shown,
        HasSubstr(
            std::string("[r") + rank + "] " + rank + " 127.0.0.1:9 key\n"));
  }
  const Outcome nobody = sherd("replica drain 1 --control /no/such/socket");
  EXPECT_EQ(nobody.exit_status, 1);
  EXPECT_THAT(nobody.shown, HasSubstr("no launcher"));
}

TEST(Command, TimersOfReplicasAreInTheirEnvironment) {
  const auto timeouts = [](const std::string& flags) {
    return sherd(
               "run --fault-tolerant --replicas 1 --coordinator 127.0.0.1:9 " +
               flags + " sh -c 'echo $SHERD_TIMEOUTS'")
        .shown;
  };
  EXPECT_THAT(timeouts(""), HasSubstr(" leave=10\n"));
  EXPECT_THAT(timeouts("--grace 60"), HasSubstr(" leave=20\n"));
  EXPECT_THAT(
      timeouts("--leave-timeout 2 --fetch-timeout 0.5"),
      HasSubstr(" leave=10,fetch=0.5,leave=2\n"));
  EXPECT_THAT(
      timeouts("--linger-timeout 0"),
      HasSubstr("--linger-timeout: expected seconds above 0, found 0"));
}

TEST(Command, ReplicasThatConnectTooLateForTheCoordinatorAreRefused) {
  const auto shown = [](const std::string& flags,
                        const std::string& variables = "") {
    return test::run_in_shell(
               variables +
               " '" SHERD_COMMAND "' run --fault-tolerant --replicas 1 " +
               flags + " sh -c 'echo it runs'")
        .shown;
  };
  const auto refused = [](const std::string& limit, const std::string& found) {
    return HasSubstr(
        "--connect-timeout: expected at most seven tenths of --join-timeout, " +
        limit + " s, found " + found);
  };
  EXPECT_THAT(shown("--connect-timeout 0.8"), refused("0.7", "0.8"));
  EXPECT_THAT(shown("--join-timeout 0.5"), refused("0.35", "0.7"));
  EXPECT_THAT(
      shown("--join-timeout 3 --connect-timeout 2.11"), refused("2.1", "2.11"));
  EXPECT_THAT(
      shown("", "SHERD_TIMEOUTS=connect=3,link=2"), refused("0.7", "3"));
  EXPECT_THAT(
      shown("--connect-timeout 0.7", "SHERD_TIMEOUTS=connect=3"),
      HasSubstr("it runs"));
  EXPECT_THAT(
      shown("--join-timeout 3 --connect-timeout 2.1"), HasSubstr("it runs"));
  // Nobody knows how long a coordinator elsewhere waits.
  EXPECT_THAT(
      shown("--coordinator 127.0.0.1:9 --connect-timeout 5"),
      HasSubstr("it runs"));
}

TEST(Command, BenchmarksThatAreNotBuiltAreNamedWithARemedy) {
  const testing::ScratchFolder folder;
  const std::string copy = folder.path() + "/sherd";
  std::filesystem::copy_file(SHERD_COMMAND, copy);
  const Outcome outcome = test::run_in_shell("'" + copy + "' bench step");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(
      outcome.shown,
      AllOf(HasSubstr(copy + "-bench"), HasSubstr("'make build'")));
  EXPECT_THAT(
      test::run_in_shell("'" + copy + "' --help").shown, HasSubstr("bench"));
  // `make train` builds neither the coordinator nor the program of ranks of replicas.
  const auto replicas = test::run_in_shell(
      "'" + copy + "' run --fault-tolerant --replicas 2 true");
  EXPECT_NE(replicas.exit_status, 0);
  EXPECT_THAT(
      replicas.shown,
      AllOf(HasSubstr(copy + "-coordinate"), HasSubstr("'make build'")));
  const auto rank =
      test::run_in_shell("SHERD_COORDINATOR=a:1 '" + copy + "' train --help");
  EXPECT_EQ(rank.exit_status, 1);
  EXPECT_THAT(
      rank.shown,
      AllOf(HasSubstr(copy + "-train-replica"), HasSubstr("'make build'")));
}

TEST(Command, ExitStatusIsThatOfTheRanks) {
  EXPECT_EQ(sherd("run -n 3 true").exit_status, 0);
  EXPECT_EQ(sherd("run -n 2 -- sh -c 'exit 9'").exit_status, 9);
  EXPECT_EQ(sherd("run -n 2 no-such-program").exit_status, 127);
  EXPECT_EQ(sherd("run -n 2 /etc/passwd").exit_status, 126);
}

TEST(Command, OutputCanBePlain) {
  EXPECT_EQ(sherd("run -n 1 --no-prefix echo hi").shown, "hi\n");
  EXPECT_THAT(sherd("run -n 1 true").shown, IsEmpty());
}

TEST(Command, TheUsersThreadsAndVariablesAreKept) {
  EXPECT_EQ(
      sherd("run -n 1 sh -c 'echo $RANK; printenv PATH' >/dev/null")
          .exit_status,
      0);
  const std::string line = "run -n 1 printenv OMP_NUM_THREADS";
  EXPECT_NE(sherd(line).shown, "[rank 0] 77\n");
  ::setenv("OMP_NUM_THREADS", "77", 1);
  EXPECT_EQ(sherd(line).shown, "[rank 0] 77\n");
  ::unsetenv("OMP_NUM_THREADS");
}

}  // namespace
}  // namespace sherd
