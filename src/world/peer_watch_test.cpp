// SPDX-License-Identifier: Apache-2.0
#include "world/peer_watch.h"

#include <sys/wait.h>
#include <unistd.h>
#include <atomic>
#include <csignal>
#include <functional>
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/check.h"
#include "base/clock.h"
#include "world/exit_status_page.h"
#include "world/rank_record.h"

namespace sherd::world {
namespace {

using namespace std::chrono_literals;

// A process that writes to its own page, reports its record, and then waits to be killed. Rank 0 is
// the test's own process; the peers follow.
class Peer {
 public:
  Peer(int rank, const std::function<void(ExitStatusPage&)>& post) {
    int record_pipe[2];
    SHERD_CHECK(::pipe(record_pipe) == 0, "[test] pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      ExitStatusPage board;
      const std::string text =
          RankRecord::of_this_process(
              rank, 8, board.fd(), HostIdentity::of_this_process())
              .to_text();
      post(board);
      [[maybe_unused]] const auto n =
          ::write(record_pipe[1], text.data(), text.size());
      ::close(record_pipe[1]);
      for (;;) {
        ::pause();
      }
    }
    ::close(record_pipe[1]);
    std::string text(512, '\0');
    const auto n = ::read(record_pipe[0], text.data(), text.size());
    text.resize(static_cast<std::size_t>(n));
    ::close(record_pipe[0]);
    record_ = RankRecord::from_text(text).value();
  }
  ~Peer() { kill(); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void kill() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }
  const RankRecord& record() const { return record_; }

 private:
  pid_t pid_ = -1;
  RankRecord record_;
};

void nothing(ExitStatusPage& /*board*/) {}

class PeerWatchTest : public ::testing::Test {
 protected:
  std::vector<RankRecord> records(const std::vector<const Peer*>& peers) {
    std::vector<RankRecord> all{RankRecord::of_this_process(
        0, 8, board.fd(), HostIdentity::of_this_process())};
    for (const Peer* peer : peers) {
      all.push_back(peer->record());
    }
    return all;
  }
  ExitStatusPage board;
};

TEST_F(PeerWatchTest, RecordsDeathsInOrderAndCallsBack) {
  Peer one(1, nothing);
  Peer two(2, nothing);
  PeerWatch watch(0, records({&one, &two}), board);
  std::atomic<int> calls = 0;
  const int handle = watch.subscribe([&] { ++calls; });
  EXPECT_TRUE(watch.watches(1));
  EXPECT_FALSE(watch.watches(0));
  EXPECT_FALSE(watch.wait_lost(20ms));

  two.kill();
  ASSERT_TRUE(watch.wait_lost(5s));
  one.kill();

  EXPECT_EQ(watch.explain_closed(1, 5s).rank, 1);
  EXPECT_EQ(watch.first_lost()->rank, 2);
  EXPECT_EQ(watch.first_lost()->how, "died");
  EXPECT_EQ(watch.first_lost({1})->rank, 1);
  EXPECT_FALSE(watch.first_lost({0}));
  watch.stop();  // The second call may still have been under way.
  watch.unsubscribe(handle);
  EXPECT_GE(calls, 2);                       // It is called at ticks, too.
  EXPECT_EQ(board.read().trouble->rank, 2);  // Others can read it.
}

TEST_F(PeerWatchTest, APeerThatLeftIsNotLost) {
  Peer one(1, [](ExitStatusPage& b) { b.record_end(ExitStatus::End::kLeft); });
  PeerWatch watch(0, records({&one}), board);
  one.kill();
  EXPECT_FALSE(watch.wait_lost(50ms));
  // It is a loss only if somebody needed it.
  EXPECT_EQ(watch.explain_closed(1, 1s).how, "left the job");
}

TEST_F(PeerWatchTest, FollowsBlameToItsRoot) {
  Peer one(1, [](ExitStatusPage& b) { b.record_failure(2, "closed"); });
  Peer two(2, [](ExitStatusPage& b) { b.record_failure(3, "closed"); });
  Peer three(3, [](ExitStatusPage& b) {
    b.record_failure(3, "gave up: out of memory");
    b.record_end(ExitStatus::End::kGaveUp);
  });
  PeerWatch watch(0, records({&one, &two, &three}), board);
  one.kill();
  ASSERT_TRUE(watch.wait_lost(5s));
  EXPECT_EQ(watch.first_lost()->rank, 3);
  EXPECT_EQ(watch.first_lost()->how, "gave up: out of memory");
  EXPECT_TRUE(watch.first_lost()->gave_up);
  EXPECT_TRUE(watch.first_lost({1}));
}

// Rank 2 closed, rank 1 ended because of that, and rank 2 saw it end.
TEST_F(PeerWatchTest, BlameInACircleEndsWithWhatWasSaidFirst) {
  Peer one(1, [](ExitStatusPage& b) { b.record_failure(2, "closed"); });
  Peer two(2, [](ExitStatusPage& b) { b.record_failure(1, "died"); });
  Peer three(3, nothing);
  PeerWatch watch(0, records({&one, &two, &three}), board);
  one.kill();
  ASSERT_TRUE(watch.wait_lost(5s));
  EXPECT_EQ(watch.first_lost()->rank, 2);
  EXPECT_EQ(watch.first_lost()->how, "closed");
}

TEST_F(PeerWatchTest, APeerThatBlamesUsDied) {
  Peer one(1, [](ExitStatusPage& b) { b.record_failure(0, "was silent"); });
  PeerWatch watch(0, records({&one}), board);
  one.kill();
  ASSERT_TRUE(watch.wait_lost(5s));
  EXPECT_EQ(watch.first_lost()->rank, 1);
}

TEST_F(PeerWatchTest, APeerThatIsGoneAtTheStartIsLost) {
  Peer one(1, nothing);
  auto all = records({&one});
  one.kill();
  for (const std::uint64_t start_ticks :
       {all[1].start_ticks, std::uint64_t{0}}) {
    all[1].start_ticks = start_ticks;  // 0 is an unknown time.
    PeerWatch watch(0, all, board);
    ASSERT_TRUE(watch.first_lost());
    EXPECT_EQ(watch.first_lost()->rank, 1);
  }
}

TEST_F(PeerWatchTest, ARecycledProcessIdIsNotThePeer) {
  Peer one(1, nothing);
  auto all = records({&one});
  all[1].start_ticks -= 1;
  PeerWatch watch(0, all, board);
  EXPECT_EQ(watch.first_lost()->rank, 1);
}

// As on a busy machine, where the thread of the watch has no core.
TEST_F(PeerWatchTest, WhoAsksSeesADeathThatTheThreadHasNotSeen) {
  const auto ask_late = [&](const auto& ask) {
    Peer one(1, nothing);
    PeerWatch watch(0, records({&one}), board);
    std::atomic<bool> holds = false;
    const int handle = watch.subscribe([&] {
      holds = true;
      while (!watch.first_lost()) {
        std::this_thread::yield();
      }
    });
    while (!holds) {
      std::this_thread::yield();
    }
    one.kill();
    ask(watch);
    // Without it, the thread would wait for ever where nothing was seen.
    watch.report({1, "was not seen to die"});
    EXPECT_EQ(watch.first_lost()->how, "died");
    watch.unsubscribe(handle);
  };
  ask_late([](PeerWatch& watch) { watch.explain_closed(1, 0ms); });
  ask_late([](PeerWatch& watch) { watch.wait_lost(0ms); });
}

// It blames this rank, which has nothing to wait for.
TEST_F(PeerWatchTest, ALivePeerThatBlamesUsClosedItsConnection) {
  Peer one(1, [](ExitStatusPage& b) { b.record_failure(0, "was silent"); });
  PeerWatch watch(0, records({&one}), board);
  const SteadyClock clock;
  const Instant began = clock.now();
  EXPECT_EQ(watch.explain_closed(1, 60s).how, "closed its connection");
  EXPECT_LT(clock.now() - began, 30s);
}

TEST_F(PeerWatchTest, AfterStopDeathsAreInOrder) {
  Peer one(1, nothing);
  PeerWatch watch(0, records({&one}), board);
  watch.stop();
  watch.stop();
  one.kill();
  EXPECT_FALSE(watch.wait_lost(50ms));
  EXPECT_EQ(watch.explain_closed(1, 1ms).how, "closed its connection");
}

TEST_F(PeerWatchTest, TicksForRanksItCannotWatch) {
  Peer one(1, nothing);
  auto all = records({&one});
  all[1].host.hostname = "elsewhere";
  PeerWatch watch(0, all, board);
  EXPECT_FALSE(watch.watches(1));
  EXPECT_EQ(watch.host_of(1), "elsewhere");
  EXPECT_EQ(watch.place_of(1), "; rank 1 is on elsewhere");
  EXPECT_EQ(watch.place_of(0), "");
  std::atomic<int> ticks = 0;
  const int handle = watch.subscribe([&] { ++ticks; });
  EXPECT_FALSE(watch.wait_lost(800ms));
  EXPECT_GE(ticks, 1);
  watch.unsubscribe(handle);

  EXPECT_EQ(watch.explain_closed(1, 5s).how, "closed its connection");
  watch.report({1, "again"});  // This changes nothing.
  EXPECT_EQ(watch.first_lost()->how, "closed its connection");
}

TEST(ExitStatusPage, KeepsTheFirstOfEach) {
  ExitStatusPage board;
  EXPECT_EQ(board.read().end, ExitStatus::End::kNone);
  EXPECT_FALSE(board.read().trouble);
  board.record_failure(3, std::string(2000, 'x'));
  board.record_failure(4, "later");
  board.record_end(ExitStatus::End::kGaveUp);
  board.record_end(ExitStatus::End::kLeft);
  EXPECT_EQ(board.read().end, ExitStatus::End::kGaveUp);
  EXPECT_EQ(board.read().trouble->rank, 3);
  EXPECT_EQ(board.read().trouble->how, std::string(479, 'x'));
}

TEST(ExitStatusPage, IsReadThroughTheProcessAndOnlyIfItIsOne) {
  ExitStatusPage board;
  const int pid = static_cast<int>(::getpid());
  const auto reader = ExitStatusPage::open(pid, board.fd());
  ASSERT_NE(reader, nullptr);
  board.record_failure(1, "died");
  EXPECT_EQ(reader->read().trouble->how, "died");
  EXPECT_EQ(ExitStatusPage::open(pid, -1), nullptr);
  EXPECT_EQ(ExitStatusPage::open(pid, 0), nullptr);
  EXPECT_EQ(ExitStatusPage::open(0, board.fd()), nullptr);
}

TEST(RankRecord, TravelsAsText) {
  const RankRecord mine =
      RankRecord::of_this_process(3, 4, 17, HostIdentity::of_this_process());
  EXPECT_TRUE(
      same_host(RankRecord::from_text(mine.to_text()).value().host, mine.host));
  const RankRecord read = RankRecord::from_text(mine.to_text()).value();
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.world_size, 4);
  EXPECT_EQ(read.pid, ::getpid());
  EXPECT_EQ(read.start_ticks, mine.start_ticks);
  EXPECT_GT(read.start_ticks, 0U);
  EXPECT_EQ(read.exit_status_fd, 17);
  EXPECT_TRUE(same_pids(read.host, mine.host));
  EXPECT_FALSE(read.host.net_namespace.empty());
  EXPECT_TRUE(same_network(read.host, mine.host));
}

TEST(RankRecord, FakeHostsDifferAndCanStillBeWatched) {
  auto host = HostIdentity::of_this_process();
  const auto other = host;
  host.fake = "1";
  const auto read = RankRecord::from_text(
                        RankRecord::of_this_process(0, 2, 3, host).to_text())
                        .value();
  EXPECT_TRUE(same_host(read.host, host));
  EXPECT_FALSE(same_host(read.host, other));
  EXPECT_TRUE(same_pids(read.host, other));
}

// Virtual machines may share a name, and containers a machine.
TEST(RankRecord, EachPartOfAnIdentityCounts) {
  const HostIdentity host{
      .hostname = "vm",
      .boot_id = "boot",
      .pid_namespace = "pid",
      .net_namespace = "net"};
  auto renamed = host;
  renamed.hostname = "other";
  auto restarted = host;
  restarted.boot_id = "other";
  auto contained = host;
  contained.pid_namespace = "other";
  for (const auto& other : {renamed, restarted}) {
    EXPECT_FALSE(same_host(host, other));
    EXPECT_FALSE(same_pids(host, other));
    EXPECT_FALSE(same_network(host, other));
  }
  EXPECT_TRUE(same_host(host, contained));
  EXPECT_FALSE(same_pids(host, contained));
  EXPECT_TRUE(same_network(host, contained));
  auto elsewhere = host;
  elsewhere.net_namespace = "other";
  EXPECT_TRUE(same_host(host, elsewhere));
  EXPECT_TRUE(same_pids(host, elsewhere));
  EXPECT_FALSE(same_network(host, elsewhere));
}

TEST(RankRecord, RefusesWhatIsNone) {
  const std::string good = RankRecord::of_this_process(0, 1, 5, {}).to_text();
  const std::vector<std::string> bad_ones{
      "",
      "x\n\n\n\n\n",
      good.substr(0, 20),
      "sherd-rank-4\n4 4 10 1 1\na\nb\nc\nd\ne\nf\n",
      "sherd-rank-4\n0 4 ten 1 1\na\nb\nc\nd\ne\nf\n",
      "sherd-rank-4\n0 4 0 1 1\na\nb\nc\nd\ne\nf\n"};
  for (const std::string& bad : bad_ones) {
    EXPECT_FALSE(RankRecord::from_text(bad).ok()) << bad;
  }
  EXPECT_TRUE(RankRecord::from_text(good).ok());
}

}  // namespace
}  // namespace sherd::world
