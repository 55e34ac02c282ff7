// SPDX-License-Identifier: Apache-2.0
//
// Real ranks that end by themselves: what they are passed, where their output goes, and what is
// refused before they start.
#include <sherd/launch/launch.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "base/descriptor.h"
#include "launch/launcher_under_test.h"
#include "launch/start_plan.h"
#include "support/scratch_folder.h"

namespace sherd::launch {
namespace {

using ::sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::multiset<std::string> lines_of(const std::string& text) {
  std::multiset<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.insert(line);
  }
  return lines;
}

std::string file_text(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Besides its streams it has only the descriptor through which the test looks.
TEST(Launch, ARankInheritsNoDescriptorOfTheLauncher) {
  const LauncherResult outcome =
      launch_and_wait(ranks_of(2, "ls -C /proc/$$/fd"));
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(
        outcome.out,
        ::testing::ContainsRegex(
            std::string("\\[rank ") + rank + "\\] 0  1  2  [0-9]+\n"));
  }
}

TEST(Launch, EveryRankLearnsItsPlace) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    LaunchOptions options = ranks_of(
        ranks,
        "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE "
        "$MASTER_ADDR:$MASTER_PORT $OMP_NUM_THREADS $MINE");
    options.port = OccupiedPort().port();  // Which is free again.
    options.environment.push_back("MINE=kept");
    options.environment.push_back("OMP_NUM_THREADS=3");
    options.environment.push_back("RANK=77");
    const LauncherResult outcome = launch_and_wait(options);
    EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
    std::multiset<std::string> expected;
    for (int rank = 0; rank < ranks; ++rank) {
      std::ostringstream line;
      line << "[rank " << rank << "] " << rank << "/" << ranks << " " << rank
           << "/" << ranks << " 127.0.0.1:" << options.port << " 3 kept";
      expected.insert(line.str());
    }
    EXPECT_EQ(lines_of(outcome.out), expected);
    EXPECT_THAT(outcome.err, IsEmpty());
  }
}

TEST(Launch, RanksShareAFreePortAndDivideThreads) {
  const LauncherResult outcome =
      launch_and_wait(ranks_of(2, "echo $MASTER_PORT $OMP_NUM_THREADS"));
  int port[2] = {};
  int threads[2] = {};
  for (const std::string& line : lines_of(outcome.out)) {
    int rank = 0;
    int at_port = 0;
    int count = 0;
    ASSERT_EQ(
        std::sscanf(line.c_str(), "[rank %d] %d %d", &rank, &at_port, &count),
        3);
    port[rank] = at_port;
    threads[rank] = count;
  }
  EXPECT_EQ(port[0], port[1]);
  EXPECT_GE(port[0], 20000);
  const int cores = static_cast<int>(usable_cores().size());
  EXPECT_EQ(threads[0], std::max(1, cores / 2));
  EXPECT_EQ(threads[1], threads[0]);
}

// "0-2,5" -> {0, 1, 2, 5}.
std::vector<int> parse_core_list(const std::string& text) {
  std::vector<int> cores;
  std::istringstream in(text);
  for (std::string entry; std::getline(in, entry, ',');) {
    const std::size_t dash = entry.find('-');
    const int first = std::stoi(entry);
    const int last =
        dash == std::string::npos ? first : std::stoi(entry.substr(dash + 1));
    for (int core = first; core <= last; ++core) {
      cores.push_back(core);
    }
  }
  return cores;
}

// The cores on which each rank may run.
std::map<int, std::vector<int>> cores_seen(bool bind, int ranks) {
  LaunchOptions options = ranks_of(
      ranks, "sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status");
  options.bind_cores = bind;
  std::map<int, std::vector<int>> seen;
  for (const std::string& line : lines_of(launch_and_wait(options).out)) {
    const int rank = std::stoi(line.substr(line.find(' ')));
    seen[rank] = parse_core_list(line.substr(line.find("] ") + 2));
  }
  return seen;
}

TEST(Launch, RanksGetCoresOfTheirOwnWhenThereAreEnough) {
  const std::vector<CpuCore> cores = usable_cores();
  std::vector<int> all;
  for (const CpuCore& core : cores) {
    all.push_back(core.number);
  }
  const int count = static_cast<int>(cores.size());
  const auto divided = divide_cores(cores, count);
  const auto bound = cores_seen(true, count);
  ASSERT_EQ(bound.size(), divided.size());
  for (std::size_t rank = 0; rank < divided.size(); ++rank) {
    EXPECT_EQ(bound.at(static_cast<int>(rank)), divided[rank]);
  }
  EXPECT_EQ(cores_seen(false, 1).at(0), all);
  EXPECT_EQ(cores_seen(true, count + 1).at(count), all);
}

TEST(Launch, ManyMoreRanksThanCoresAreAllowed) {
  const LauncherResult outcome = launch_and_wait(ranks_of(40, "echo here"));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(lines_of(outcome.out).size(), 40U);
}

TEST(Launch, ArgumentsArriveUntouched) {
  LaunchOptions options = ranks_of(1, "");
  options.command = {"printf", "<%s>", "a b", "--flag", "", "--", "$X"};
  EXPECT_EQ(launch_and_wait(options).out, "[rank 0] <a b><--flag><><--><$X>\n");
}

TEST(Launch, StreamsStayApartAndUnfinishedLinesAreShown) {
  const LauncherResult outcome =
      launch_and_wait(ranks_of(1, "echo out; echo err >&2; printf unfinished"));
  EXPECT_EQ(outcome.out, "[rank 0] out\n[rank 0] unfinished\n");
  EXPECT_EQ(outcome.err, "[rank 0] err\n");
}

TEST(Launch, PlainOutputHasNoPrefix) {
  LaunchOptions options = ranks_of(1, "echo out; printf '10%%\\r20%%\\n'");
  options.output = RankOutput::kPlain;
  EXPECT_EQ(launch_and_wait(options).out, "out\n10%\n20%\n");
}

TEST(Launch, ThousandsOfLinesArriveWholeAndInOrderPerRank) {
  constexpr int kRanks = 4;
  constexpr int kLines = 20000;
  const LauncherResult outcome =
      launch_and_wait(ranks_of(kRanks, "seq 1 20000"));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  int next[kRanks] = {1, 1, 1, 1};
  std::istringstream in(outcome.out);
  for (std::string line; std::getline(in, line);) {
    int rank = 0;
    int number = 0;
    int length = 0;
    ASSERT_EQ(
        std::sscanf(line.c_str(), "[rank %d] %d%n", &rank, &number, &length), 2)
        << line;
    ASSERT_EQ(static_cast<std::size_t>(length), line.size()) << line;
    ASSERT_EQ(number, next[rank]++);
  }
  for (const int end : next) {
    EXPECT_EQ(end, kLines + 1);
  }
}

TEST(Launch, OneLineMuchLargerThanAPipePasses) {
  const LauncherResult outcome = launch_and_wait(
      ranks_of(2, "head -c 1000000 /dev/zero | tr '\\0' x; echo; echo end"));
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), 'x'), 2000000);
  EXPECT_THAT(outcome.out, HasSubstr("[rank 1] end\n"));
}

TEST(Launch, AReaderThatComesLateLosesNothing) {
  // Far more than pipes and queues hold: the ranks wait for the reader.
  LauncherProcess launcher(
      ranks_of(2, "seq 1 400000; [ $RANK = 1 ] || echo written >&2"));
  ASSERT_TRUE(launcher.wait_for_out("[rank 0] 1\n"));
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(outcome.exit_status, 0);
  EXPECT_EQ(std::count(outcome.out.begin(), outcome.out.end(), '\n'), 800000);
  EXPECT_THAT(outcome.err, HasSubstr("[rank 0] written"));
}

TEST(Launch, AClosedStdoutIsClosedForTheRanksToo) {
  LauncherProcess launcher(ranks_of(1, "exec yes"));
  ASSERT_TRUE(launcher.wait_for_out("[rank 0] y\n"));
  launcher.close_stdout();
  EXPECT_EQ(launcher.finish().exit_status, 128 + SIGPIPE);
}

TEST(Launch, LostOutputEndsNoRankAndIsAFailure) {
  const Descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const auto outcome_of = [&](const std::string& script) {
    return LauncherProcess(ranks_of(2, script), {.stdout_fd = full.get()})
        .finish();
  };
  // More than pipes and queues hold.
  const LauncherResult outcome = outcome_of("seq 1 400000; echo on >&2");
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_EQ(
      lines_of(outcome.err),
      (std::multiset<std::string>{
          "[rank 0] on", "[rank 1] on",
          "sherd: error: cannot write to standard output: No space left on "
          "device; output of the ranks was lost"}));
  EXPECT_EQ(outcome_of("echo out; exit 5").exit_status, 5);
}

TEST(Launch, LostMessagesAreAFailureToo) {
  const Descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  LauncherProcess launcher(
      ranks_of(2, "echo out >&2"), {.stderr_fd = full.get()});
  EXPECT_EQ(launcher.finish().exit_status, 1);
}

TEST(Launch, RankZeroAloneReadsStdin) {
  auto [read_end, write_end] = make_pipe();
  LauncherProcess launcher(
      ranks_of(3, "cat; echo done"), {.stdin_fd = read_end.get()});
  ASSERT_EQ(::write(write_end.get(), "hello\n", 6), 6);
  write_end.close();
  const LauncherResult outcome = launcher.finish();
  EXPECT_EQ(
      lines_of(outcome.out),
      (std::multiset<std::string>{
          "[rank 0] hello", "[rank 0] done", "[rank 1] done",
          "[rank 2] done"}));
}

TEST(Launch, RankZeroDrawsOnTheTerminalItself) {
  const Descriptor terminal(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal.open());
  ASSERT_EQ(::grantpt(terminal.get()), 0);
  ASSERT_EQ(::unlockpt(terminal.get()), 0);
  char name[64];
  ASSERT_EQ(::ptsname_r(terminal.get(), name, sizeof name), 0);
  const Descriptor screen(::open(name, O_RDWR | O_NOCTTY | O_CLOEXEC));
  LaunchOptions options = ranks_of(
      2,
      "if [ $RANK = 0 ]; then printf '1%%\\r2%%\\n'; test -t 1; "
      "else echo other; fi");
  options.rank0_owns_stdout = true;
  LauncherProcess launcher(options, {.stdout_fd = screen.get()});
  EXPECT_EQ(launcher.finish().exit_status, 0);
  // The kernel passes terminal output on in pieces and at its own pace.
  std::string shown;
  const Instant deadline = SteadyClock().now() + kTestTimeout;
  while ((shown.find("[rank 1] other") == std::string::npos ||
          shown.find("1%\r2%\r\n") == std::string::npos) &&
         wait_readable(terminal.get(), deadline)) {
    char piece[256];
    const ssize_t count = ::read(terminal.get(), piece, sizeof piece);
    ASSERT_GT(count, 0) << shown;
    shown.append(piece, static_cast<std::size_t>(count));
  }
  EXPECT_THAT(shown, HasSubstr("1%\r2%\r\n"));
  EXPECT_THAT(shown, HasSubstr("[rank 1] other"));
  EXPECT_THAT(shown, Not(HasSubstr("[rank 0]")));
}

TEST(Launch, LogFilesHoldBothStreamsAndTheReportReadsThem) {
  const ScratchFolder folder;
  LaunchOptions options =
      ranks_of(2, "echo out $RANK; echo err $RANK >&2; exit $((RANK * 4))");
  options.output = RankOutput::kFiles;
  options.log_dir = folder.path() + "/deep/logs";
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.exit_status, 4);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_EQ(file_text(options.log_dir + "/rank-1.log"), "out 1\nerr 1\n");
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("goes to " + options.log_dir + "/rank-0.log"),
          HasSubstr("in " + options.log_dir + "/rank-1.log:"),
          HasSubstr("    err 1\n")));
}

TEST(Launch, UnwritableLogFolderIsAnErrorBeforeAnythingStarts) {
  const ScratchFolder folder;
  std::ofstream(folder.path() + "/file") << "in the way";
  LaunchOptions options = ranks_of(2, "echo started");
  options.output = RankOutput::kFiles;
  options.log_dir = folder.path() + "/file/logs";
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(outcome.err, HasSubstr(options.log_dir));
}

TEST(Launch, PortInUseIsAnErrorBeforeAnythingStarts) {
  const OccupiedPort listener;
  LaunchOptions options = ranks_of(2, "echo started");
  options.port = listener.port();
  const LauncherResult outcome = launch_and_wait(options);
  EXPECT_EQ(outcome.exit_status, 1);
  EXPECT_THAT(
      outcome.err,
      HasSubstr("port " + std::to_string(listener.port()) + " is in use"));
  EXPECT_THAT(outcome.out, IsEmpty());
}

TEST(Launch, ProgramsThatCannotRunAreNamed) {
  const ScratchFolder folder;
  const auto outcome_of = [](const std::string& program) {
    LaunchOptions options = ranks_of(3, "");
    options.command = {program};
    return launch_and_wait(options);
  };
  const LauncherResult absent = outcome_of("no-such-program");
  EXPECT_EQ(absent.exit_status, 127);
  EXPECT_THAT(absent.err, HasSubstr("'no-such-program'"));
  EXPECT_EQ(outcome_of(folder.path()).exit_status, 126);

  // Only exec notices these two.
  const std::string script = folder.path() + "/script";
  std::ofstream(script) << "#!/no/such/interpreter\n";
  ::chmod(script.c_str(), 0755);
  const LauncherResult no_interpreter = outcome_of(script);
  EXPECT_EQ(no_interpreter.exit_status, 127);
  EXPECT_THAT(no_interpreter.err, HasSubstr("interpreter"));
  std::ofstream(script) << "echo no first line\n";
  const LauncherResult no_format = outcome_of(script);
  EXPECT_EQ(no_format.exit_status, 126);
  EXPECT_THAT(no_format.err, HasSubstr("#!/bin/sh"));
}

LauncherResult launch_without_network(const LaunchOptions& options) {
  return LauncherProcess(options, {.network = false}).finish();
}

TEST(LaunchWithoutNetwork, RanksThatCouldNotMeetAreNotStarted) {
  LaunchOptions replica = ranks_of(1, "echo started");
  replica.replicas.emplace();
  replica.replicas->coordinator_command = {"/bin/echo", "started"};
  for (const auto& options : {ranks_of(2, "echo started"), replica}) {
    const LauncherResult outcome = launch_without_network(options);
    if (outcome.exit_status == LauncherProcess::kNoNamespaces) {
      GTEST_SKIP() << "no namespaces here";
    }
    EXPECT_EQ(outcome.exit_status, 1);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(
        outcome.err,
        HasSubstr("sherd: error: expected to reach 127.0.0.1, where the "
                  "processes of the job meet, found no way: Network is "
                  "unreachable"));
  }
}

TEST(LaunchWithoutNetwork, ALoneRankNeedsNone) {
  const LauncherResult outcome =
      launch_without_network(ranks_of(1, "echo started"));
  if (outcome.exit_status == LauncherProcess::kNoNamespaces) {
    GTEST_SKIP() << "no namespaces here";
  }
  EXPECT_EQ(outcome.exit_status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "[rank 0] started\n");
}

TEST(LaunchOptions, ThatMakeNoSenseAreRefused) {
  const auto refusal = [](const LaunchOptions& options) -> std::string {
    try {
      run(options);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  LaunchOptions options = ranks_of(0, "");
  EXPECT_THAT(refusal(options), HasSubstr("at least 1 rank, found 0"));
  options.ranks = 1;
  options.port = 65536;
  EXPECT_THAT(refusal(options), HasSubstr("found 65536"));
  options.port = 0;
  options.log_dir = "x";
  EXPECT_THAT(refusal(options), HasSubstr("log_dir"));
  options.output = RankOutput::kFiles;
  options.rank0_owns_stdout = true;
  EXPECT_THAT(refusal(options), HasSubstr("both"));
  options = ranks_of(1, "");
  options.command.clear();
  EXPECT_THAT(refusal(options), HasSubstr("expected a program"));
}

}  // namespace
}  // namespace sherd::launch
