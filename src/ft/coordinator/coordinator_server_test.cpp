// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/coordinator_server.h"

#include <sys/socket.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include "ft/coordinator/failing_disk_testing.h"
#include "ft/coordinator/fake_replica_testing.h"
#include "ft/coordinator/http_testing.h"
#include "ft/coordinator/log_store.h"
#include "ft/wire/codec.h"
#include "ft/wire/messages_testing.h"
#include "net/connection.h"
#include "support/scratch_folder.h"

namespace sherd::ft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::FakeReplica;
using test::run_until;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A peer that sends one frame or none, and keeps what it receives.
class TestClient {
 public:
  TestClient(
      net::Loop& loop,
      const net::HostAddress& address,
      std::optional<net::Frame> says)
      : dial_(
            loop,
            address,
            {},
            [this,
             says = std::move(says)](Result<net::ConnectionHandle> dialled) {
              connection_ = std::move(dialled).value();
              connection_->start(
                  {.on_frame =
                       [this](const net::Frame& frame) {
                         heard_.push_back(frame);
                       },
                   .on_closed = [this](const Status&) { closed_ = true; }});
              if (says) {
                connection_->send(says->type, says->payload);
              }
            }) {}
  const std::vector<net::Frame>& received() const { return heard_; }
  bool closed() const { return closed_; }

 private:
  net::ConnectionHandle connection_;
  std::vector<net::Frame> heard_;
  bool closed_ = false;
  net::Connector dial_;
};

net::Frame frame_of(const Report& report) {
  return {
      .type = static_cast<std::uint16_t>(FrameType::kReport),
      .payload = bytes_of(report)};
}

// A coordinator and replicas in one loop, with real sockets and a real log.
class ServiceTest : public ::testing::Test {
 protected:
  ServiceTest() {
    options_.address = {"127.0.0.1", 0};
    options_.log = folder_.path() + "/log.db";
    options_.coordinator.run = 77;
    options_.coordinator.replicas_start = 3;
    options_.coordinator.samples_per_replica = 4;
    options_.coordinator.reconnect_timeout = milliseconds(300);
    // They cannot send heartbeats while the shared loop waits for the disk.
    options_.detector.dead_after = seconds(10);
  }

  void start() {
    service_ =
        CoordinatorServer::start(loop_, options_, [this](const Status& why) {
          ended_ = why.message();
        }).value();
    options_.address = service_->address();
  }
  FakeReplica& add(ReplicaId replica, Incarnation incarnation = 1) {
    replicas_.push_back(std::make_unique<FakeReplica>(
        loop_,
        test::FakeReplicaOptions{
            .address = options_.address,
            .replica = replica,
            .incarnation = incarnation}));
    return *replicas_.back();
  }
  void start_three() {
    start();
    for (ReplicaId replica = 0; replica < 3; ++replica) {
      add(replica);
    }
    ASSERT_TRUE(reach(5));
  }
  // Waits until all of these have applied `more` steps beyond the furthest step now.
  bool advance(const std::vector<int>& which, std::int64_t more) {
    std::int64_t from = 0;
    for (const auto& one : replicas_) {
      from = one ? std::max(from, one->step()) : from;
    }
    return run_until(loop_, [&] {
      return std::all_of(which.begin(), which.end(), [&](int at) {
        return replicas_[static_cast<std::size_t>(at)]->step() >= from + more;
      });
    });
  }
  bool reach(std::int64_t step) {
    return run_until(loop_, [&] {
      return std::all_of(
          replicas_.begin(), replicas_.end(),
          [&](const auto& one) { return one->step() >= step; });
    });
  }
  std::string failures() {
    std::string text;
    for (const auto& one : service_->status().failures) {
      text += one.culprit + ": " + one.cause + "\n";
    }
    return text;
  }
  std::uint64_t counted(const std::string& name) {
    return service_->status().counters[name];
  }
  std::string state_of(ReplicaId replica) {
    for (const auto& one : service_->status().replicas) {
      if (one.replica == replica) {
        return one.state;
      }
    }
    return "unknown";
  }
  // Whether the server closes a peer that sends this frame.
  bool closed_after(std::uint16_t type, const std::string& payload) {
    const TestClient guest(
        loop_, options_.address, net::Frame{.type = type, .payload = payload});
    return run_until(loop_, [&] { return guest.closed(); }, seconds(5));
  }

  const sherd::testing::ScratchFolder folder_;
  CoordinatorServerOptions options_;
  net::Loop loop_;
  std::string ended_;
  std::unique_ptr<CoordinatorServer> service_;
  std::vector<std::unique_ptr<FakeReplica>> replicas_;
};

TEST_F(ServiceTest, ThreeReplicasCommitTheSameSteps) {
  start_three();
  ASSERT_TRUE(advance({0, 1, 2}, 20));
  const auto& one = replicas_[0]->commits();
  const auto& other = replicas_[1]->commits();
  const auto common = std::min(one.size(), other.size());
  EXPECT_TRUE(std::equal(
      one.begin(), one.begin() + static_cast<std::ptrdiff_t>(common),
      other.begin()));
  const auto status = service_->status();
  EXPECT_EQ(status.run, 77U);
  EXPECT_EQ(status.stage, "running");
  EXPECT_GE(status.canonical.step, 25);
  // Each step takes 4 samples of each replica.
  EXPECT_EQ(status.samples, 12 * status.canonical.step);
  EXPECT_EQ(
      counted("commits"), static_cast<std::uint64_t>(status.canonical.step));
  EXPECT_EQ(state_of(2), "member");
  EXPECT_TRUE(status.failures.empty()) << failures();
}

TEST_F(ServiceTest, TheLogHasWhatReplicasWereTold) {
  start_three();
  std::vector<Commit> told = replicas_[0]->commits();
  const auto log = LogStore::open(options_.log).value();
  const History history = log->take_history();
  for (const auto& commit : told) {
    EXPECT_TRUE(history.knows(commit.result)) << text_of(commit.attempt);
  }
}

TEST_F(ServiceTest, WhoDiesIsNamedAndTheOthersGoOn) {
  start_three();
  replicas_[1].reset();
  ASSERT_TRUE(advance({0, 2}, 5));
  EXPECT_THAT(failures(), HasSubstr("replica 1: "));
  EXPECT_EQ(state_of(1), "lost");
  // It comes back.
  replicas_[1] = std::make_unique<FakeReplica>(
      loop_,
      test::FakeReplicaOptions{
          .address = options_.address, .replica = 1, .incarnation = 2});
  EXPECT_TRUE(advance({0, 1, 2}, 5));
  EXPECT_TRUE(run_until(loop_, [&] { return state_of(1) == "member"; }));
}

TEST_F(ServiceTest, WhoLeavesIsNoFailure) {
  start_three();
  replicas_[1]->leave();
  ASSERT_TRUE(advance({0, 2}, 5));
  replicas_[1].reset();
  ASSERT_TRUE(advance({0, 2}, 5));
  EXPECT_EQ(failures(), "");
  EXPECT_EQ(state_of(1), "left");
}

TEST_F(ServiceTest, WhoIsSilentIsLostInTime) {
  options_.detector.dead_after = seconds(1);
  start_three();
  replicas_[2]->fall_silent();
  replicas_[2]->hang();
  ASSERT_TRUE(advance({0, 1}, 5));
  EXPECT_THAT(failures(), HasSubstr("replica 2: nothing was heard for 1."));
  EXPECT_GE(counted("silences"), 1U);
}

class ServiceHang : public ServiceTest,
                    public ::testing::WithParamInterface<Activity> {};

TEST_P(ServiceHang, WhoHangsIsLeftOutUntilItMoves) {
  options_.detector.hard_floor = milliseconds(700);
  // Nothing goes on without the replica.
  options_.coordinator.vote_timeout = seconds(30);
  start_three();
  replicas_[1]->hang_in(GetParam());
  ASSERT_TRUE(run_until(loop_, [&] { return state_of(1) == "hangs"; }));
  ASSERT_TRUE(advance({0, 2}, 5));
  EXPECT_THAT(failures(), HasSubstr("replica 1: it hangs"));
  EXPECT_EQ(replicas_[1]->connected(), 1);
  replicas_[1]->go_on();
  EXPECT_TRUE(advance({0, 1, 2}, 5));
}
INSTANTIATE_TEST_SUITE_P(
    All,
    ServiceHang,
    // Steps are too short for their computations to be seen in a report.
    ::testing::Values(
        Activity::kComputing, Activity::kReducing, Activity::kApplying),
    [](const auto& of) { return text_of(of.param); });

// The machine that heard of the hang, or none, is gone when the disk works again.
TEST_F(ServiceTest, WhoHangsWhileTheLogCannotBeWrittenIsLeftOutAfterwards) {
  options_.detector.hard_floor = milliseconds(700);
  options_.coordinator.vote_timeout = seconds(30);
  start_three();
  replicas_[1]->hang_in(Activity::kReducing);
  ASSERT_TRUE(run_until(loop_, [&] { return replicas_[1]->hanging(); }));
  test::fail_syncs(EIO);
  add(3);  // There is something to write.
  ASSERT_TRUE(
      run_until(loop_, [&] { return !service_->status().complaint.empty(); }));
  // Four replicas report ten times a second each, so the limit has passed after these.
  const auto reports = counted("reports");
  ASSERT_TRUE(
      run_until(loop_, [&] { return counted("reports") > reports + 60; }));
  EXPECT_EQ(counted("hangs"), 0U);
  test::fail_syncs(0);
  EXPECT_TRUE(advance({0, 2}, 5));
  EXPECT_THAT(failures(), HasSubstr("replica 1: it hangs"));
}

TEST_F(ServiceTest, WhoWasFoundToHangIsLeftOutOfTheNextTermToo) {
  options_.detector.hard_floor = milliseconds(700);
  options_.coordinator.vote_timeout = seconds(30);
  start_three();
  replicas_[1]->hang_in(Activity::kReducing);
  ASSERT_TRUE(run_until(loop_, [&] { return state_of(1) == "hangs"; }));
  test::fail_syncs(EIO);
  add(3);
  ASSERT_TRUE(
      run_until(loop_, [&] { return !service_->status().complaint.empty(); }));
  test::fail_syncs(0);
  EXPECT_TRUE(advance({0, 2}, 5));
  EXPECT_EQ(counted("hangs"), 2U);
}

TEST_F(ServiceTest, ANewerLifeFencesTheOlder) {
  start_three();
  add(1, 2);
  EXPECT_TRUE(
      run_until(loop_, [&] { return !replicas_[1]->stopped().empty(); }));
  EXPECT_TRUE(advance({0, 2, 3}, 5));
}

// A replica that waits for the stranger would be taken for one that hangs.
TEST_F(ServiceTest, AGuestOfAnotherRunTakesNobodysPlace) {
  options_.detector.hard_floor = milliseconds(700);
  // Nothing goes on without the replica.
  options_.coordinator.vote_timeout = seconds(30);
  options_.detector.first_floor = milliseconds(700);
  start_three();
  Report report;
  report.replica = 1;
  report.incarnation = 99;
  report.config = 1;
  report.run = 5;
  const TestClient guest(loop_, options_.address, frame_of(report));
  ASSERT_TRUE(run_until(loop_, [&] { return !guest.received().empty(); }));
  EXPECT_THAT(
      run_view_of(guest.received().front().payload).value().fenced,
      HasSubstr("this is run 77, the replica is of run 5"));
  EXPECT_EQ(state_of(1), "member");
  replicas_[1]->hang();
  ASSERT_TRUE(advance({0, 2}, 5));
  EXPECT_THAT(failures(), HasSubstr("replica 1: it hangs"));
  EXPECT_THAT(failures(), Not(HasSubstr("replica 0: it hangs")));
  EXPECT_THAT(failures(), Not(HasSubstr("replica 2: it hangs")));
}

TEST_F(ServiceTest, OfTwoConnectionsOfOneLifeTheNewerCounts) {
  start_three();
  auto& twin = add(2);
  EXPECT_TRUE(run_until(loop_, [&] {
    return replicas_[2]->connected() > 1 || twin.connected() > 1 ||
        counted("refusals") > 0;
  }));
  replicas_.pop_back();
  EXPECT_TRUE(advance({0, 1, 2}, 5));
}

TEST_F(ServiceTest, StrangersFramesCloseTheirConnectionAlone) {
  start_three();
  constexpr auto kReport = static_cast<std::uint16_t>(FrameType::kReport);
  constexpr auto kRunView = static_cast<std::uint16_t>(FrameType::kRunView);
  Report report;
  report.replica = 1;
  report.incarnation = 9;
  std::string other_version = bytes_of(report);
  other_version[0] = 9;
  EXPECT_TRUE(closed_after(99, "hello"));
  EXPECT_TRUE(closed_after(kRunView, bytes_of(RunView())));
  EXPECT_TRUE(closed_after(kReport, ""));
  EXPECT_TRUE(closed_after(kReport, "rubbish"));
  EXPECT_TRUE(closed_after(kReport, other_version));
  EXPECT_TRUE(closed_after(kReport, bytes_of(report) + "more"));
  // A second report cannot be the first one of a connection.
  EXPECT_TRUE(closed_after(kReport, bytes_of(report).substr(0, 6)));
  EXPECT_TRUE(closed_after(kReport, std::string((1U << 20U) + 1, '\0')));
  EXPECT_EQ(counted("refusals"), 8U);
  EXPECT_TRUE(advance({0, 1, 2}, 5));
  EXPECT_EQ(failures(), "");
}

// Otherwise it would connect again and again.
TEST_F(ServiceTest, AReplicaOfAnotherVersionIsToldSoNamingBoth) {
  start();
  std::string words = bytes_of(Report());
  words[0] = 9;
  ::testing::internal::CaptureStderr();
  const TestClient guest(
      loop_, options_.address,
      net::Frame{
          .type = static_cast<std::uint16_t>(FrameType::kReport),
          .payload = words});
  ASSERT_TRUE(run_until(loop_, [&] { return guest.closed(); }));
  const std::string why =
      "the coordinator speaks version 6 with its replicas, and this replica "
      "version 9";
  ASSERT_EQ(guest.received().size(), 1U);
  EXPECT_EQ(
      guest.received()[0].type,
      static_cast<std::uint16_t>(FrameType::kRefusal));
  EXPECT_THAT(guest.received()[0].payload, HasSubstr(why));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr(why));
}

TEST_F(ServiceTest, OfManyStrangersAFewAreLoggedAndAllAreCounted) {
  start();
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 40; ++i) {
    EXPECT_TRUE(closed_after(99, "hello"));
  }
  const auto said = ::testing::internal::GetCapturedStderr();
  std::size_t lines = 0;
  for (auto at = said.find("closing"); at != std::string::npos;
       at = said.find("closing", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(counted("refusals"), 40U);
  EXPECT_GT(lines, 0U);
  EXPECT_LE(lines, 10U) << said;
}

// A peer without an identity gets no room for the length that it announces.
TEST_F(ServiceTest, AReportThatIsTooLongIsRefusedByItsHeader) {
  options_.listen.connection.payload_bytes_max = std::size_t{64} << 20U;
  options_.first_report_timeout = seconds(60);
  start();
  const Descriptor socket = test::connected_to(options_.address.text());
  test::say(
      socket,
      net::frame_bytes(
          {.type = net::kGreetingType,
           .payload = std::string(net::greeting_of(net::Side::kDialled))}) +
          net::frame_bytes(
              {.type = static_cast<std::uint16_t>(FrameType::kReport),
               .payload = std::string(std::size_t{2} << 20U, '\0')})
              .substr(0, net::kFrameHeaderBytes));
  EXPECT_TRUE(run_until(loop_, [&] { return counted("refusals") == 1; }));
  std::array<char, 4096> bytes{};
  EXPECT_TRUE(run_until(loop_, [&] {
    return ::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) == 0;
  }));
}

// They reach the log, the page and the people who read them.
TEST_F(ServiceTest, TextsOfReportsAreMadePrintable) {
  start_three();
  Report report;
  report.replica = 5;
  report.incarnation = 1;
  report.config = 1;
  report.suspicion = Suspicion{
      replicas_[0]->machine().view().epoch, 2,
      "gone\x1b[2J\nsherd: all is well"};
  const TestClient guest(loop_, options_.address, frame_of(report));
  ASSERT_TRUE(run_until(loop_, [&] { return counted("failures") == 1; }));
  EXPECT_EQ(
      failures(), "replica 2: gone?[2J?sherd: all is well (says replica 5)\n");
}

TEST_F(ServiceTest, WhoNeverReportsIsClosed) {
  options_.first_report_timeout = milliseconds(200);
  start();
  const TestClient guest(loop_, options_.address, std::nullopt);
  EXPECT_TRUE(run_until(loop_, [&] { return guest.closed(); }));
}

// ---- the log ----

TEST_F(ServiceTest, ARestartGoesOnWhereItWas) {
  start_three();
  const auto before = service_->status();
  service_.reset();
  start();
  EXPECT_EQ(service_->status().term, before.term + 1);
  EXPECT_EQ(service_->status().canonical, before.canonical);
  EXPECT_EQ(service_->status().run, 77U);
  EXPECT_TRUE(advance({0, 1, 2}, 5));
  for (const auto& one : replicas_) {
    EXPECT_EQ(one->stopped(), "");
  }
}

TEST_F(ServiceTest, WithoutADiskNothingIsCommittedAndAfterwardsItGoesOn) {
  start_three();
  test::fail_syncs(EIO);
  ASSERT_TRUE(
      run_until(loop_, [&] { return !service_->status().complaint.empty(); }));
  EXPECT_THAT(service_->status().complaint, HasSubstr("disk I/O error"));
  const auto steps = [&] {
    return std::max(
        {replicas_[0]->step(), replicas_[1]->step(), replicas_[2]->step()});
  };
  // Views sent before may still be under way.
  (void)run_until(loop_, [] { return false; }, milliseconds(300));
  const auto stalled = steps();
  (void)run_until(loop_, [] { return false; }, milliseconds(500));
  EXPECT_EQ(steps(), stalled);
  EXPECT_EQ(ended_, "");
  test::fail_syncs(0);
  EXPECT_TRUE(advance({0, 1, 2}, 5));
  EXPECT_EQ(service_->status().complaint, "");
  EXPECT_THAT(failures(), HasSubstr("log: [ft] log"));
  EXPECT_GE(service_->status().term, 2U);
}

// The file system may have been unmounted.
TEST_F(ServiceTest, ALogThatVanishesWhileTheDiskFailsIsWaitedFor) {
  start_three();
  test::fail_syncs(EIO);
  ASSERT_TRUE(
      run_until(loop_, [&] { return !service_->status().complaint.empty(); }));
  const auto move_all = [&](const std::string& from, const std::string& to) {
    for (const char* end : {"", "-wal", "-shm"}) {
      std::error_code missing;
      std::filesystem::rename(from + end, to + end, missing);
    }
  };
  move_all(options_.log, options_.log + ".away");
  test::fail_syncs(0);
  ASSERT_TRUE(run_until(loop_, [&] {
    return service_->status().complaint.find("found no file") !=
        std::string::npos;
  }));
  EXPECT_FALSE(std::filesystem::exists(options_.log));
  EXPECT_EQ(ended_, "");
  move_all(options_.log + ".away", options_.log);
  EXPECT_TRUE(advance({0, 1, 2}, 5));
  EXPECT_EQ(service_->status().run, 77U);
}

// Another process has damaged the table, or the disk has space for records alone.
TEST_F(ServiceTest, WithoutASummaryItGoesOn) {
  options_.summary_every = 16;
  start_three();
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(options_.log.c_str(), &database), SQLITE_OK);
  sqlite3_busy_timeout(database, 1000);
  ASSERT_EQ(
      sqlite3_exec(database, "DROP TABLE summary", nullptr, nullptr, nullptr),
      SQLITE_OK);
  sqlite3_close(database);
  ASSERT_TRUE(
      run_until(loop_, [&] { return counted("summary_failures") >= 2; }));
  EXPECT_TRUE(advance({0, 1, 2}, 5));
  EXPECT_EQ(service_->status().complaint, "");
  EXPECT_EQ(service_->status().term, 1U);
  const auto status = service_->status();
  ASSERT_EQ(status.failures.size(), 1U) << failures();
  EXPECT_THAT(status.failures[0].cause, HasSubstr("cannot summarise"));
}

TEST_F(ServiceTest, AnEmptyLogIsNotTheRunThatReplicasKnow) {
  start_three();
  service_.reset();
  for (const char* end : {"", "-wal", "-shm"}) {
    std::filesystem::remove(options_.log + end);
  }
  options_.coordinator.run = 88;
  start();
  // All are back, but the coordinator begins nothing with them.
  ASSERT_TRUE(run_until(loop_, [&] { return counted("reports") >= 6; }));
  const auto step = replicas_[0]->step();
  (void)run_until(loop_, [] { return false; }, milliseconds(500));
  EXPECT_EQ(replicas_[0]->step(), step);
  EXPECT_EQ(counted("commits"), 0U);
  EXPECT_EQ(counted("epochs"), 0U);
  // The failure is also in the coordinator's log and among the last failures.
  EXPECT_THAT(
      failures(),
      HasSubstr("the run: the log is empty, but replica 0 is of "
                "run 77"));
}

TEST_F(ServiceTest, AnEmptyLogGoesOnWithTheRunThatReplicasKnow) {
  start_three();
  const auto step = service_->status().canonical.step;
  service_.reset();
  for (const char* end : {"", "-wal", "-shm"}) {
    std::filesystem::remove(options_.log + end);
  }
  options_.coordinator.run = 88;
  options_.coordinator.recovers = true;
  start();
  EXPECT_TRUE(advance({0, 1, 2}, 5));
  EXPECT_EQ(service_->status().run, 77U);
  EXPECT_GE(service_->status().canonical.step, step);
  EXPECT_EQ(counted("recoveries"), 1U);
  EXPECT_THAT(failures(), HasSubstr("the log: was empty: run 77 goes on"));
}

TEST_F(ServiceTest, OneThatIsLeftOverFromAnotherRunIsRefusedAlone) {
  start();
  Report old;
  old.replica = 7;
  old.incarnation = 99;
  old.config = 1;
  old.run = 5;
  const TestClient left_over(loop_, options_.address, frame_of(old));
  ASSERT_TRUE(run_until(loop_, [&] { return !left_over.received().empty(); }));
  EXPECT_THAT(service_->status().complaint, HasSubstr("replica 7 is of run 5"));
  for (ReplicaId replica = 0; replica < 3; ++replica) {
    add(replica);
  }
  EXPECT_TRUE(reach(5));
  EXPECT_EQ(service_->status().complaint, "");
}

TEST_F(ServiceTest, ALogThatWasDeletedIsNoticedAndRescued) {
  start_three();
  const auto step = service_->status().canonical.step;
  for (const char* end : {"", "-wal", "-shm"}) {
    std::filesystem::remove(options_.log + end);
  }
  ASSERT_TRUE(run_until(loop_, [&] { return !ended_.empty(); }));
  EXPECT_THAT(
      ended_,
      AllOf(
          HasSubstr("it was deleted while the coordinator used it"),
          HasSubstr("move that to '" + options_.log + "'")));
  service_.reset();
  // Restarting it at once does not begin a new run.
  const auto started = CoordinatorServer::start(loop_, options_, nullptr);
  ASSERT_FALSE(started.ok());
  EXPECT_THAT(started.status().message(), HasSubstr(".rescued"));
  std::filesystem::rename(options_.log + ".rescued", options_.log);
  start();
  EXPECT_EQ(service_->status().run, 77U);
  EXPECT_GE(service_->status().canonical.step, step);
  EXPECT_TRUE(advance({0, 1, 2}, 5));
}

TEST_F(ServiceTest, ASuccessorEndsIt) {
  start_three();
  {
    const auto successor = LogStore::open(options_.log).value();
    const History history = successor->take_history();
    ASSERT_TRUE(successor->append({TermRecord{history.term + 1, 77}}).ok());
  }
  EXPECT_TRUE(run_until(loop_, [&] { return !ended_.empty(); }));
  EXPECT_THAT(ended_, HasSubstr("the log belongs to term 2 now"));
}

TEST_F(ServiceTest, ALogThatCannotBeHadIsAFailure) {
  options_.log = "/nowhere/log.db";
  const auto started = CoordinatorServer::start(loop_, options_, nullptr);
  ASSERT_FALSE(started.ok());
  EXPECT_THAT(started.status().message(), HasSubstr("/nowhere/log.db"));
}

}  // namespace
}  // namespace sherd::ft
