// SPDX-License-Identifier: Apache-2.0
//
// What a rank does with a sum before it is decided.
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/run_main.h>
#include "ft/replica/rank_agent.h"
#include "net/loop.h"

namespace sherd::ft {
namespace {

using ::testing::ElementsAre;

const StateId kBase{0, first_lineage(1, 2)};
constexpr Duration kPatience = std::chrono::seconds(20);

// A rank that is alone in its ring; the test plays its leader. Its two buckets have 2 floats and 1
// float.
class LoneRank {
 public:
  using OnEvent = std::function<void(LoneRank&, const RankEvent&)>;

  LoneRank(OnEvent hear, std::function<bool(std::int64_t, float*)> spoil)
      : hear_(std::move(hear)),
        agent_(
            loop_,
            options_of(std::move(spoil)),
            [this](const RankEvent& event) { hear_(*this, event); },
            [] {}),
        thread_([this] { loop_.run(); }) {
    // At once: the ring, which has one member, may answer before this thread goes on.
    loop_.post([this] {
      agent_.take(StartRunTask{5});
      agent_.take(ring_of({1, 1}));
      agent_.take(ComputeTask{
          .serial = 1,
          .base = kBase,
          .samples = {{0, 8}},
          .replicas = 1,
          .place = 0});
    });
  }
  ~LoneRank() {
    loop_.stop();
    thread_.join();
  }
  LoneRank(const LoneRank&) = delete;
  LoneRank& operator=(const LoneRank&) = delete;

  RankAgent& agent() { return agent_; }
  void tell(RankTask task) {
    loop_.post([this, task = std::move(task)] { agent_.take(task); });
  }
  void join(const Epoch& epoch) { tell(ring_of(epoch)); }
  void reduce(const Epoch& epoch) { tell(ReduceTask{{epoch, 1}, {8}}); }
  void commit(const Epoch& epoch) {
    tell(ApplyTask{{{epoch, 1}, kBase, {1, {5, 6}}, 9, 8}});
  }

 private:
  static RingMembership ring_of(const Epoch& epoch) {
    return {
        epoch,
        {{.replica = 1, .incarnation = 1, .host = "127.0.0.1", .port = 1}}};
  }
  static RankAgentOptions options_of(
      std::function<bool(std::int64_t, float*)> spoil) {
    RankAgentOptions options;
    options.replica = 1;
    options.incarnation = 1;
    options.buckets = {2, 1};
    options.hooks.spoil = std::move(spoil);
    return options;
  }

  const OnEvent hear_;
  net::Loop loop_;
  RankAgent agent_;
  std::thread thread_;
};

// What a program copies of sums, and what it has copied by the time it makes the step.
struct Copies {
  std::function<void()> all_copied = [] {};
  std::vector<float> copied = std::vector<float>(3);
  std::vector<float> used = {};

  TrainingCallbacks program() {
    return {
        .snapshot = [] { return std::string(); },
        .restore = [](const StateId&, std::string_view) {},
        .prepare =
            [this](int bucket, const float* sum) {
              const int begin = bucket == 0 ? 0 : 2;
              const int end = bucket == 0 ? 2 : 3;
              for (int i = begin; i < end; ++i) {
                copied[static_cast<std::size_t>(i)] = sum[i];
              }
              if (bucket == 1) {
                all_copied();
              }
            },
        .update = [this](const Commit&, const float*) { used = copied; }};
  }
};

// Whether the step was made.
bool make_step(LoneRank& rank, const TrainingCallbacks& program) {
  const auto task = rank.agent().next(program);
  for (int i = 0; i < 3; ++i) {
    rank.agent().gradients()[i] = static_cast<float>(i + 1);
  }
  return rank.agent().finish(*task, program);
}

TEST(RankAgentSum, IsCopiedWhileNobodyHasDecided) {
  Copies copies;
  LoneRank rank(
      [](LoneRank& all, const RankEvent& event) {
        if (std::holds_alternative<JoinedEvent>(event)) {
          all.reduce({1, 1});
        }
      },
      {});
  bool decided = false;  // Used by the program's thread.
  copies.all_copied = [&] {
    decided = true;
    rank.commit({1, 1});
  };
  // If the sum is not copied early, this thread decides in the end.
  std::mutex mutex;
  std::condition_variable done;
  bool made = false;
  std::thread late([&] {
    std::unique_lock lock(mutex);
    if (!done.wait_for(lock, kPatience, [&] { return made; })) {
      rank.commit({1, 1});
    }
  });
  EXPECT_TRUE(make_step(rank, copies.program()));
  {
    const std::lock_guard lock(mutex);
    made = true;
    done.notify_all();
  }
  late.join();
  EXPECT_TRUE(decided);
  EXPECT_THAT(copies.used, ElementsAre(1, 2, 3));
}

// A copy takes longer than a part of a step does, and others wait for this rank meanwhile.
TEST(RankAgentActivity, CopiesAndEvaluationsAreOtherWorkThanAStep) {
  Copies copies;
  LoneRank rank(
      [](LoneRank& all, const RankEvent& event) {
        if (std::holds_alternative<JoinedEvent>(event)) {
          all.reduce({1, 1});
        } else if (std::holds_alternative<ReducedEvent>(event)) {
          all.tell(SnapshotTask{.state = kBase});
        }
      },
      {});
  const auto activity = [&] { return rank.agent().progress().activity; };
  std::vector<Activity> seen;
  auto program = copies.program();
  program.snapshot = [&] {
    seen.push_back(activity());
    rank.commit({1, 1});
    return std::string();
  };
  const auto task = rank.agent().next(program);
  seen.push_back(activity());
  rank.agent().other_work([&] { seen.push_back(activity()); });
  const auto fail = [] { throw Error("[test] an evaluation failed"); };
  EXPECT_THROW(rank.agent().other_work(fail), Error);
  seen.push_back(activity());
  EXPECT_TRUE(rank.agent().finish(*task, program));
  EXPECT_THAT(
      seen,
      ElementsAre(
          Activity::kComputing, Activity::kOtherWork, Activity::kComputing,
          Activity::kOtherWork));
}

TEST(RankAgentSum, IsCopiedAnewWhereTheFirstOneIsGivenUp) {
  Copies copies;
  LoneRank rank(
      [](LoneRank& all, const RankEvent& event) {
        if (const auto* joined = std::get_if<JoinedEvent>(&event)) {
          all.reduce(joined->epoch);
        }
        const auto* reduced = std::get_if<ReducedEvent>(&event);
        if (reduced != nullptr && reduced->attempt.epoch == Epoch{1, 2}) {
          all.commit({1, 2});
        }
      },
      [first = true](std::int64_t, float* sum) mutable {
        sum[0] += std::exchange(first, false) ? 100.F : 0.F;
        return true;
      });
  std::vector<float> given_up;
  copies.all_copied = [&] {
    if (given_up.empty()) {
      given_up = copies.copied;
      rank.tell(StopReduceTask{{1, 1}});
      rank.join({1, 2});
    }
  };
  EXPECT_TRUE(make_step(rank, copies.program()));
  EXPECT_THAT(given_up, ElementsAre(101, 2, 3));
  EXPECT_THAT(copies.used, ElementsAre(1, 2, 3));
}

// The program may have cleared what it had copied.
TEST(RankAgentSum, IsCopiedAnewWhereTheProgramWasInterrupted) {
  Copies copies;
  LoneRank rank(
      [](LoneRank& all, const RankEvent& event) {
        if (std::holds_alternative<JoinedEvent>(event)) {
          all.reduce({1, 1});
        }
      },
      {});
  copies.all_copied = [] { set_interrupt_check([] { return true; }); };
  EXPECT_THROW(make_step(rank, copies.program()), Error);
  set_interrupt_check(nullptr);
  copies.all_copied = [] {};
  copies.copied.assign(3, 0);
  rank.commit({1, 1});
  rank.tell(ComputeTask{.serial = 2, .base = {1, {5, 6}}, .samples = {}});
  EXPECT_TRUE(rank.agent().next(copies.program()));
  EXPECT_THAT(copies.used, ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace sherd::ft
