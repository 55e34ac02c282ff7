// SPDX-License-Identifier: Apache-2.0
//
// coordinate() in processes that are actually killed and stopped.
#include <sherd/ft/coordinator.h>

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/process.h"
#include "ft/coordinator/fake_replica_testing.h"
#include "ft/coordinator/http_testing.h"
#include "ft/coordinator/log_store.h"
#include "net/loop.h"
#include "support/error_of.h"
#include "support/scratch_folder.h"

namespace sherd::ft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::FakeReplica;
using test::run_until;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A process that only runs coordinate() and is killed when the test ends.
class Process {
 public:
  explicit Process(const CoordinateOptions& options) : pid_(::fork()) {
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      int status = 1;
      try {
        status = coordinate(options);
      } catch (const std::exception&) {
      }
      ::_exit(status);
    }
    ended_ = open_pidfd(pid_);
  }
  ~Process() {
    if (ended_.open()) {
      signal(SIGKILL);
      (void)wait();
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  // Its exit code, -1 if a signal ended it, or -2 if it did not end in time.
  int wait() {
    pollfd polled{ended_.get(), POLLIN, 0};
    if (::poll(&polled, 1, 20000) != 1) {
      return -2;
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    ended_.close();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
  Descriptor ended_;
};

class CoordinateKilled : public ::testing::Test {
 protected:
  CoordinateKilled() {
    options_.log = folder_.path() + "/run/coordinator.db";
    options_.ready_file = folder_.path() + "/ready";
    options_.replicas_start = 3;
    options_.samples_per_replica = 4;
  }

  std::unique_ptr<Process> start() {
    ::unlink(options_.ready_file.c_str());
    auto process = std::make_unique<Process>(options_);
    EXPECT_TRUE(run_until(loop_, [&] {
      return ::access(options_.ready_file.c_str(), R_OK) == 0;
    }));
    std::ifstream(options_.ready_file) >> options_.bind >> status_;
    return process;
  }
  void add_three() {
    for (ReplicaId replica = 0; replica < 3; ++replica) {
      replicas_.push_back(std::make_unique<FakeReplica>(
          loop_,
          test::FakeReplicaOptions{
              .address = net::parse_host_address(options_.bind),
              .replica = replica,
              .incarnation = 1}));
    }
    ASSERT_TRUE(advance(5));
  }
  bool advance(std::int64_t more) {
    const auto to = replicas_[0]->step() + more;
    return run_until(loop_, [&] {
      for (const auto& one : replicas_) {
        if (one->step() < to) {
          return false;
        }
      }
      return true;
    });
  }
  History history() {
    return LogStore::open(options_.log).value()->take_history();
  }
  // What replicas were told is in the log, and no replica was stopped.
  void check_log() {
    const History known = history();
    for (const auto& one : replicas_) {
      EXPECT_EQ(one->stopped(), "");
      for (const auto& commit : one->commits()) {
        EXPECT_TRUE(known.knows(commit.result)) << text_of(commit.attempt);
      }
    }
  }

  const sherd::testing::ScratchFolder folder_;
  CoordinateOptions options_;
  std::string status_;  // The address of its page.
  net::Loop loop_;
  std::vector<std::unique_ptr<FakeReplica>> replicas_;
};

TEST_F(CoordinateKilled, EndsInOrderWhenItIsTold) {
  for (const int signal : {SIGTERM, SIGINT}) {
    auto process = start();
    process->signal(signal);
    EXPECT_EQ(process->wait(), 0);
  }
}

TEST_F(CoordinateKilled, NothingThatWasToldIsLost) {
  auto process = start();
  add_three();
  for (std::uint64_t life = 1; life <= 5; ++life) {
    ASSERT_TRUE(advance(5 + static_cast<std::int64_t>(life)));
    process->signal(SIGKILL);
    EXPECT_EQ(process->wait(), -1);
    check_log();
    EXPECT_EQ(history().term, life);
    process = start();
    const Instant from = loop_.now();
    ASSERT_TRUE(advance(1));
    EXPECT_LT(loop_.now() - from, seconds(5));
  }
}

TEST_F(CoordinateKilled, ADraftOfItsReadyFileIsSweptByTheNextStart) {
  const std::string draft = folder_.file("ready.4711.new", "127.0.0.1:1\n");
  const auto process = start();
  EXPECT_NE(::access(draft.c_str(), F_OK), 0);
  EXPECT_THAT(options_.bind, StartsWith("127.0.0.1:"));
}

TEST_F(CoordinateKilled, ItsStatusIsServedBesides) {
  options_.status = "127.0.0.1:0";
  const auto process = start();
  add_three();
  std::string json;
  EXPECT_TRUE(run_until(loop_, [&] {
    json = test::answer(status_, "GET /status.json HTTP/1.1\r\n\r\n");
    return json.find("\"stage\": \"running\"") != std::string::npos;
  })) << json;
  EXPECT_THAT(json, HasSubstr("\"state\": \"member\""));
  EXPECT_THAT(
      test::answer(status_, "GET / HTTP/1.1\r\n\r\n"),
      HasSubstr("committed step"));
}

TEST_F(CoordinateKilled, OneThatWasStoppedForAWhileBlamesNobody) {
  // The stop lasts longer than this, but a moment in which this process does not run is shorter.
  options_.dead_after = options_.join_timeout = milliseconds(2500);
  auto process = start();
  add_three();
  const auto step = replicas_[0]->step();
  process->signal(SIGSTOP);
  (void)run_until(loop_, [] { return false; }, seconds(3));
  EXPECT_LE(replicas_[0]->step(), step + 2);
  process->signal(SIGCONT);
  ASSERT_TRUE(advance(10));
  const History after = history();
  EXPECT_EQ(after.term, 1U);
  EXPECT_EQ(after.epoch, (Epoch{1, 1}));
}

TEST_F(CoordinateKilled, OneThatHasASuccessorEndsWhenItWakes) {
  auto former = start();
  add_three();
  former->signal(SIGSTOP);
  const std::string address = options_.bind;
  options_.bind = "127.0.0.1:0";
  auto successor = start();
  EXPECT_NE(options_.bind, address);
  former->signal(SIGCONT);
  EXPECT_EQ(former->wait(), 1);
  EXPECT_EQ(history().term, 2U);
  check_log();
}

TEST_F(CoordinateKilled, ItTakesAllDescriptorsThatItMayHave) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = std::min<rlim_t>(before.rlim_max, 128);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto process = start();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit has{};
  ASSERT_EQ(::prlimit(process->pid(), RLIMIT_NOFILE, nullptr, &has), 0);
  EXPECT_EQ(has.rlim_cur, before.rlim_max);
}

TEST_F(CoordinateKilled, OptionsThatMakeNoSenseAreRefused) {
  const auto refusal = [](const CoordinateOptions& options) {
    return sherd::test::error_of([&] { (void)coordinate(options); });
  };
  CoordinateOptions options;
  EXPECT_THAT(refusal(options), HasSubstr("expected the path of a log"));
  options.log = options_.log;
  options.replicas_min = 0;
  EXPECT_THAT(
      refusal(options), HasSubstr("found a minimum of 0 and 1 to start with"));
  options.replicas_min = 1;
  options.dead_after = milliseconds(100);
  EXPECT_THAT(refusal(options), HasSubstr("dead after 500 ms"));
  options.dead_after = seconds(1);
  options.bind = "0.0.0.0:0";
  EXPECT_THAT(refusal(options), HasSubstr("0.0.0.0"));
  options.bind = "127.0.0.1:0";
  options.status = "0.0.0.0:0";
  EXPECT_THAT(refusal(options), HasSubstr("expected the status page on"));
  options.status.clear();
  options.tls_key = "key.pem";
  EXPECT_THAT(
      refusal(options),
      HasSubstr("expected files of a certificate, its key and the authority"));
  options.secret_file = "secret";
  EXPECT_THAT(refusal(options), HasSubstr("found both"));
}

TEST_F(CoordinateKilled, ReplicasNeedTheSecret) {
  options_.secret_file = folder_.file("secret", "0123456789abcdef\n");
  const auto process = start();
  test::FakeReplicaOptions options{
      .address = net::parse_host_address(options_.bind),
      .security = net::read_shared_secret(options_.secret_file)};
  FakeReplica knows(loop_, options);
  EXPECT_TRUE(run_until(loop_, [&] { return knows.connected() > 0; }));
  options.security = {};
  FakeReplica does_not_know(loop_, options);
  (void)run_until(loop_, [] { return false; }, milliseconds(500));
  EXPECT_EQ(does_not_know.connected(), 0);
}

}  // namespace
}  // namespace sherd::ft
