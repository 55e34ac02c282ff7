// SPDX-License-Identifier: Apache-2.0
//
// What a leader sends and receives before there is anything to train, over real sockets, with a
// minimal coordinator.
#include "ft/replica/leader.h"

#include <poll.h>
#include <sys/socket.h>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/replica/replica_agent.h"
#include "ft/wire/codec.h"
#include "ft/wire/messages_testing.h"
#include "ft/wire/report_stream.h"
#include "ft/wire/view_stream.h"
#include "net/frame.h"
#include "net/listener.h"
#include "net/loop.h"
#include "net/tcp_socket.h"

namespace sherd::ft {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

const StateId kFirst{0, first_lineage(5, 1)};

// Answers each report with what `answer` makes of it, which may be nothing, until it has received
// enough reports.
class CoordinatedLeader {
 public:
  using Answer = std::function<std::optional<RunView>(const Report& report)>;
  explicit CoordinatedLeader(net::Loop& loop) : loop_(loop) {
    net::ListenerHandlers handlers;
    handlers.on_connection = [this](net::ConnectionHandle one) {
      connection_ = std::move(one);
      reader_ = {};
      connection_->start(
          {[this](const net::Frame& frame) { received(frame); },
           [](const Status&) {}});
    };
    listener_ =
        net::Listener::listen(loop, {"127.0.0.1", 0}, {}, handlers).value();
  }
  net::HostAddress address() const { return listener_->address(); }
  const std::vector<Report>& reports() const { return reports_; }

  // Runs the loop.
  void serve(std::size_t reports, Answer answer) {
    enough_ = reports;
    answer_ = std::move(answer);
    const auto late = loop_.after(std::chrono::seconds(20), [this] {
      ADD_FAILURE() << "expected " << enough_ << " reports in time, found "
                    << reports_.size();
      loop_.stop();
    });
    loop_.run();
  }

 private:
  void received(const net::Frame& frame) {
    ASSERT_TRUE(reader_.read(frame.payload).ok());
    reports_.push_back(reader_.report());
    if (const auto view = answer_(reports_.back())) {
      connection_->send(
          static_cast<std::uint16_t>(FrameType::kRunView),
          views_.bytes_for(told_, std::make_shared<const RunView>(*view)));
    }
    if (reports_.size() >= enough_) {
      loop_.stop();
    }
  }

  net::Loop& loop_;
  std::unique_ptr<net::Listener> listener_;
  net::ConnectionHandle connection_;
  // Reads the current connection.
  ReportReader reader_;
  ViewWriter views_;
  ToldView told_;
  std::vector<Report> reports_;
  std::size_t enough_ = 0;
  Answer answer_;
};

RunView order_of_run(std::uint64_t run) {
  RunView view;
  view.run = run;
  view.term = 1;
  view.canonical = kFirst;
  return view;
}

ReplicaAgentOptions options_of(const net::HostAddress& coordinator) {
  ReplicaAgentOptions options;
  options.rank.incarnation = 7;
  options.config = 5;
  options.held = kFirst;
  options.coordinator = coordinator;
  return options;
}

RankAddresses addresses_of(std::size_t ranks) {
  return std::vector<RankAddress>(ranks, {"127.0.0.1", 1, 2});
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(Leader, SaysOnceThatACoordinatorIsOfAnotherRun) {
  net::Loop loop;
  CoordinatedLeader coordinator(loop);
  Leader leader(
      loop, options_of(coordinator.address()), addresses_of(1),
      [](std::size_t, const RankTask&) {});
  ::testing::internal::CaptureStderr();
  std::uint64_t run = 1;
  coordinator.serve(
      6, [&](const Report&) { return order_of_run(std::exchange(run, 2)); });
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(
      count_of(said, "expected a coordinator of run 1, found one of run 2"), 1U)
      << said;
}

TEST(Leader, SaysOnceWhyThereIsNoCoordinator) {
  net::Loop loop;
  // Nobody listens there.
  const auto options = options_of({"127.0.0.1", 1});
  ::testing::internal::CaptureStderr();
  Leader leader(
      loop, options, addresses_of(1), [](std::size_t, const RankTask&) {});
  // Time for several attempts, each after half a second at most.
  const auto enough = loop.after(milliseconds(700), [&] { loop.stop(); });
  loop.run();
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(count_of(said, "no coordinator yet: "), 1U) << said;
  EXPECT_EQ(count_of(said, "127.0.0.1:1"), 1U) << said;
}

TEST(Leader, SaysOnceWhyNoDonorOffersAState) {
  net::Loop loop;
  CoordinatedLeader coordinator(loop);
  std::uint16_t nobody = 0;
  {
    nobody = std::move(net::listen_on("127.0.0.1")).value().port;
  }
  RunView view = order_of_run(1);
  view.canonical = {3, kFirst.lineage};
  for (const ReplicaId peer : {1U, 2U}) {
    view.peers.push_back(
        {.replica = peer,
         .held = view.canonical,
         .addresses = {{"127.0.0.1", 1, nobody}}});
  }
  std::unique_ptr<Leader> leader;
  const auto send = [&](std::size_t rank, const RankTask& task) {
    if (const auto* sum = std::get_if<FetchTask>(&task);
        sum != nullptr && sum->is_sum) {
      loop.post([&leader, rank, serial = sum->serial] {
        FetchedEvent event;
        event.serial = serial;
        event.failure = "there is no sum";
        leader->received(rank, event);
      });
    }
  };
  leader = std::make_unique<Leader>(
      loop, options_of(coordinator.address()), addresses_of(1), send);
  ::testing::internal::CaptureStderr();
  // There are several attempts between two heartbeats.
  coordinator.serve(4, [&](const Report&) { return view; });
  const auto said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(
      count_of(
          said,
          "not fetched: [ft] cannot fetch a snapshot from 127.0.0.1:" +
              std::to_string(nobody)),
      1U)
      << said;
}

// Whether a replica that holds the initial state asks another one, which holds the same, for the
// sum of the next step.
bool asks_for_a_sum(const std::vector<Member>& members) {
  net::Loop loop;
  CoordinatedLeader coordinator(loop);
  RunView view = order_of_run(1);
  view.canonical = {3, kFirst.lineage};
  view.members = members;
  view.peers = {
      {.replica = 1,
       .incarnation = 8,
       .held = kFirst,
       .addresses = addresses_of(1)}};
  bool asked = false;
  Leader leader(
      loop, options_of(coordinator.address()), addresses_of(1),
      [&](std::size_t, const RankTask& task) {
        const auto* fetch = std::get_if<FetchTask>(&task);
        asked = asked || (fetch != nullptr && fetch->is_sum);
      });
  coordinator.serve(4, [&](const Report&) { return view; });
  return asked;
}

TEST(Leader, AsksOnlyAMemberThatHeldTheSameForTheNextSum) {
  EXPECT_TRUE(
      asks_for_a_sum({{.replica = 1, .incarnation = 8, .samples = {}}}));
  // All have begun again with a checkpoint, and the members of the log are former lives.
  EXPECT_FALSE(
      asks_for_a_sum({{.replica = 1, .incarnation = 5, .samples = {}}}));
}

TEST(Leader, ReportsWhatEachRankDoesAndHowLongItsAgentHasSaidNothing) {
  net::Loop loop;
  CoordinatedLeader coordinator(loop);
  Leader leader(
      loop, options_of(coordinator.address()), addresses_of(2),
      [](std::size_t, const RankTask&) {});
  TrainingProgress computing{Activity::kComputing, 5, {}};
  leader.received(0, computing);
  TrainingProgress waiting{Activity::kReducing, 6, ReplicaId{3}};
  leader.received(1, waiting);
  net::Timer timer;
  std::function<void()> say = [&] {
    leader.received(0, computing);
    timer = loop.after(milliseconds(100), say);
  };
  say();
  coordinator.serve(7, [](const Report&) { return order_of_run(1); });
  const auto last = coordinator.reports().back();
  ASSERT_EQ(last.ranks.size(), 2U);
  EXPECT_EQ(last.ranks[0].activity, Activity::kComputing);
  EXPECT_LE(last.ranks[0].missed_heartbeats, 2U);
  EXPECT_EQ(last.ranks[1].waits_for, ReplicaId{3});
  EXPECT_GE(last.ranks[1].missed_heartbeats, 4U);
  // A rank that reports again has moved, whatever it does, and no report mentions its old silence,
  // heartbeat or not.
  leader.received(1, waiting);
  leader.received(0, FinishedEvent{});
  coordinator.serve(8, [](const Report&) { return order_of_run(1); });
  EXPECT_EQ(coordinator.reports().back().ranks[1].missed_heartbeats, 0U);
  EXPECT_GT(coordinator.reports().back().progress.serial, last.progress.serial);
}

TEST(Leader, OfManyRanksReportsThoseThatHaveMovedLeast) {
  constexpr std::size_t kRanks = 100;
  net::Loop loop;
  CoordinatedLeader coordinator(loop);
  Leader leader(
      loop, options_of(coordinator.address()), addresses_of(kRanks),
      [](std::size_t, const RankTask&) {});
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    const bool late = rank == 3 || rank == 98;
    leader.received(
        rank, TrainingProgress{Activity::kReducing, late ? 5U : 9U, {}});
  }
  coordinator.serve(7, [](const Report&) { return order_of_run(1); });
  const auto told = coordinator.reports().back().ranks;
  EXPECT_EQ(told.size(), 16U);
  std::vector<std::uint32_t> late;
  for (const auto& one : told) {
    if (one.serial == 5) {
      late.push_back(one.rank);
    }
  }
  EXPECT_EQ(late, (std::vector<std::uint32_t>{3, 98}));
}

TEST(Leader, TellsOfRanksWithHeartbeatsAlone) {
  net::Loop loop;
  CoordinatedLeader coordinator(loop);
  Leader leader(
      loop, options_of(coordinator.address()), addresses_of(1),
      [](std::size_t, const RankTask&) {});
  leader.received(0, TrainingProgress{Activity::kReducing, 5U, {}});
  coordinator.serve(7, [](const Report&) { return order_of_run(1); });
  EXPECT_EQ(coordinator.reports().back().ranks.front().serial, 5U);
  // It is silent no more, which is reported at once.
  leader.received(0, TrainingProgress{Activity::kReducing, 5U, {}});
  // That its program has made its last step cannot wait for the next one.
  leader.received(0, TrainingProgress{Activity::kReducing, 6U, {}});
  leader.received(0, FinishedEvent{});
  coordinator.serve(8, [](const Report&) { return order_of_run(1); });
  const auto& last = coordinator.reports().back();
  EXPECT_TRUE(last.finished);
  EXPECT_GE(last.progress.serial, 6U);
  EXPECT_EQ(last.ranks.front().serial, 5U);
}

// ---- leaving ----

// A view of a run in which the replica is a member, so that it waits for the end of the step.
RunView order_to_member() {
  auto view = order_of_run(1);
  view.epoch = {1, 1};
  view.stage = EpochStage::kJoining;
  view.members = {{.replica = 0, .incarnation = 7, .samples = {{0, 2}}}};
  view.peers = {
      {.replica = 0,
       .incarnation = 7,
       .held = kFirst,
       .addresses = {{"127.0.0.1", 1, 2}}}};
  return view;
}

TEST(Leader, LeavesWithWhatItHoldsWhenNothingIsDecided) {
  net::Loop loop;
  CoordinatedLeader coordinator(loop);
  auto options = options_of(coordinator.address());
  options.rank.timeouts.leave = milliseconds(600);
  std::vector<RankTask> tasks;
  const auto send = [&](std::size_t, const RankTask& task) {
    tasks.push_back(task);
    if (std::holds_alternative<StopTask>(task)) {
      loop.stop();
    }
  };
  Leader leader(loop, options, addresses_of(1), send);
  // A computing rank is worth waiting for.
  leader.received(0, TrainingProgress{Activity::kComputing, 5, {}});
  bool computes = true;
  const auto done = loop.after(milliseconds(1500), [&] {
    computes = false;
    leader.received(0, TrainingProgress{Activity::kReducing, 6, {}});
  });
  ::testing::internal::CaptureStderr();
  // The coordinator tells it that it is a member and then stops.
  bool told = false;
  coordinator.serve(1000, [&](const Report& report) -> std::optional<RunView> {
    if (report.run == 0) {
      return order_to_member();
    }
    if (!std::exchange(told, true)) {
      leader.received(0, LeaveEvent{});
    }
    return std::nullopt;
  });
  const auto warning = ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(computes);
  ASSERT_TRUE(std::holds_alternative<StopTask>(tasks.back()));
  EXPECT_EQ(std::get<StopTask>(tasks.back()).reason, "");
  EXPECT_THAT(
      warning,
      HasSubstr("it leaves with step 0: it was told to, and nothing was "
                "decided for 0.6 s"));
}

// Rank 0's program ends while rank 1 still writes the last step.
TEST(Leader, StaysUntilAllRanksHaveTheLastStep) {
  const StateId second{1, 99};
  net::Loop loop;
  CoordinatedLeader coordinator(loop);
  bool all_applied = false;
  std::vector<net::Timer> events;
  Leader* leader_of_two = nullptr;
  const auto both = [&](const RankEvent& event) {
    leader_of_two->received(0, event);
    leader_of_two->received(1, event);
  };
  Leader leader(
      loop, options_of(coordinator.address()), addresses_of(2),
      [&](std::size_t rank, const RankTask& task) {
        if (std::holds_alternative<StopTask>(task)) {
          EXPECT_TRUE(all_applied);
          loop.stop();
        }
        if (rank != 0) {
          return;
        }
        std::function<void()> then;
        if (std::holds_alternative<RingMembership>(task)) {
          then = [&] { both(JoinedEvent{{1, 1}}); };
        } else if (std::holds_alternative<ReduceTask>(task)) {
          then = [&] { both(ReducedEvent{{{1, 1}, 1}, 9}); };
        } else if (std::holds_alternative<ApplyTask>(task)) {
          then = [&] {
            leader_of_two->received(0, WrittenEvent{0, second});
            leader_of_two->received(0, FinishedEvent{});
            all_applied = true;
            leader_of_two->received(1, WrittenEvent{0, second});
          };
        }
        if (then) {
          events.push_back(loop.after(milliseconds(0), then));
        }
      });
  leader_of_two = &leader;
  coordinator.serve(1000, [&](const Report& report) {
    auto view = order_to_member();
    view.peers[0].addresses = std::vector<RankAddress>(2, {"127.0.0.1", 1, 2});
    if (report.joined == Epoch{1, 1}) {
      view.stage = EpochStage::kRunning;
    }
    if (report.vote || report.held == second) {
      view.canonical = second;
      view.recent = {
          {.attempt = {{1, 1}, 1},
           .base = kFirst,
           .result = second,
           .gradients = report.vote ? report.vote->gradients : 0}};
    }
    view.peers[0].held = report.held;
    return std::optional(view);
  });
  EXPECT_TRUE(all_applied);
}

// ---- other versions ----

// Neither will ever understand the other, however often the leader connects.
TEST(Leader, EndsWhereTheCoordinatorIsOfAnotherVersionNamingBoth) {
  const std::string of_coordinator =
      "the coordinator speaks version 7 with its replicas, and this replica "
      "version 6";
  std::string view = bytes_of(order_of_run(1));
  view[0] = 7;
  const std::vector<net::Frame> answers = {
      {.type = static_cast<std::uint16_t>(FrameType::kRefusal),
       .payload = of_coordinator},
      {.type = static_cast<std::uint16_t>(FrameType::kRunView),
       .payload = view}};
  const std::vector<std::string> reasons = {
      of_coordinator,
      "this replica speaks version 6 with its coordinator, and the "
      "coordinator version 7"};
  for (std::size_t i = 0; i < answers.size(); ++i) {
    net::Loop loop;
    net::ConnectionHandle connection;
    net::ListenerHandlers handlers;
    handlers.on_connection = [&](net::ConnectionHandle one) {
      connection = std::move(one);
      connection->start(
          {[&](const net::Frame&) {
             connection->send(answers[i].type, answers[i].payload);
           },
           [](const Status&) {}});
    };
    const auto listener =
        net::Listener::listen(loop, {"127.0.0.1", 0}, {}, handlers).value();
    std::string stopped;
    const auto send = [&](std::size_t, const RankTask& task) {
      if (const auto* stop = std::get_if<StopTask>(&task)) {
        stopped = stop->reason;
        loop.stop();
      }
    };
    const Leader leader(
        loop, options_of(listener->address()), addresses_of(1), send);
    const auto late =
        loop.after(std::chrono::seconds(20), [&] { loop.stop(); });
    loop.run();
    EXPECT_THAT(stopped, HasSubstr(reasons[i]));
  }
}

// Sends its greeting and answers in frames of a later minor version, for one connection and in a
// thread of its own, since a Connection would write this version. Stops the loop once it has
// received a report that shows that it was understood.
class NewerCoordinator {
 public:
  explicit NewerCoordinator(net::Loop& loop)
      : loop_(loop),
        listening_(std::move(net::listen_on("127.0.0.1")).value()),
        thread_([this] { serve(); }) {}
  net::HostAddress address() const { return {"127.0.0.1", listening_.port}; }
  // The run in the last report.
  std::uint64_t run() const { return run_.load(std::memory_order_relaxed); }

  static constexpr std::uint64_t kRun = 9;

 private:
  static void say(
      const Descriptor& socket, std::uint16_t type, std::string payload) {
    const auto bytes = net::frame_bytes(
        {.type = type,
         .version_minor = net::kVersionMinor + 1,
         .payload = std::move(payload)});
    (void)::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void serve() {
    constexpr std::uint16_t kGreeting = 0xffff;
    pollfd ready{listening_.socket.get(), POLLIN, 0};
    if (::poll(&ready, 1, 20000) != 1) {
      return;
    }
    const Descriptor socket(
        ::accept4(listening_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    say(socket, kGreeting, "accepted");
    net::FrameReader reader(std::size_t{1} << 20U);
    ReportReader reports;
    std::vector<net::Frame> frames;
    char bytes[4096];
    for (;;) {
      const auto count = ::recv(socket.get(), bytes, sizeof bytes, 0);
      if (count <= 0 ||
          !reader.take({bytes, static_cast<std::size_t>(count)}, frames).ok()) {
        return;
      }
      for (const auto& frame : std::exchange(frames, {})) {
        if (frame.type == static_cast<std::uint16_t>(FrameType::kReport)) {
          ASSERT_TRUE(reports.read(frame.payload).ok());
          const auto run = reports.report().run;
          run_.store(run, std::memory_order_relaxed);
          if (run == kRun) {
            loop_.post([this] { loop_.stop(); });
          }
          say(socket, static_cast<std::uint16_t>(FrameType::kRunView),
              bytes_of(order_of_run(kRun)));
        }
      }
    }
  }

  net::Loop& loop_;
  net::ListeningSocket listening_;
  // Relaxed, because it orders nothing else.
  std::atomic<std::uint64_t> run_{0};
  std::jthread thread_;
};

// FrameReader's tests cover another major version.
TEST(Leader, F70UnderstandsACoordinatorOfANewerMinorVersion) {
  net::Loop loop;
  NewerCoordinator coordinator(loop);
  const Leader leader(
      loop, options_of(coordinator.address()), addresses_of(1),
      [](std::size_t, const RankTask&) {});
  const auto late = loop.after(std::chrono::seconds(20), [&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(coordinator.run(), NewerCoordinator::kRun);
}

// ---- ranks that do not find each other ----

ReplicaAgentOptions agent_options(
    int rank, milliseconds siblings = milliseconds(300)) {
  ReplicaAgentOptions options;
  options.rank.incarnation = 7;
  options.rank.shard_rank = rank;
  options.rank.buckets = {4};
  options.ranks = 3;
  options.rank.timeouts.siblings = siblings;
  options.coordinator = {"127.0.0.1", 1};
  return options;
}

std::string failure_of(ReplicaAgent& agent) {
  try {
    (void)agent.rank().next({});
  } catch (const Error& error) {
    return error.what();
  }
  return "it did not fail";
}

TEST(ReplicaAgentStart, RankZeroNamesTheRanksThatDoNotCome) {
  // Rank 2 comes within that time on a busy machine, too.
  const milliseconds siblings{2000};
  ReplicaAgent first(agent_options(0, siblings));
  ReplicaAgent second(agent_options(1, siblings));
  ReplicaAgent third(agent_options(2, 10 * siblings));
  const std::vector<std::string> all = {
      first.address(), second.address(), third.address()};
  third.start(all);
  first.start(all);
  EXPECT_THAT(
      failure_of(first),
      HasSubstr("expected all 3 ranks of this replica within 2 s, found none "
                "of rank 1"));
  EXPECT_THAT(failure_of(third), HasSubstr("rank 0 of this replica was lost"));
}

TEST(ReplicaAgentStart, AnotherRankDoesNotWaitForeverForRankZero) {
  ReplicaAgent first(agent_options(0));
  ReplicaAgent second(agent_options(1));
  ReplicaAgent third(agent_options(2));
  second.start({first.address(), second.address(), third.address()});
  EXPECT_THAT(
      failure_of(second),
      HasSubstr("rank 0 of this replica was lost: it has not answered within "
                "0.3 s"));
}

}  // namespace
}  // namespace sherd::ft
