// SPDX-License-Identifier: Apache-2.0
//
// Ranks that share memory and one that dies or stops at any moment: all others
// end soon, with an error that names it and a unit, and nothing stays behind.
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <sys/resource.h>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>
#include <sherd/shard/fully_shard.h>
#include "base/check.h"
#include "base/clock.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

FullyShardOptions shared() {
  FullyShardOptions options;
  options.exchange = ExchangeKind::kSharedMemory;
  return options;
}

void train(
    Chain& model,
    FullyShardedDataParallel& fsdp,
    AdamW& adamw,
    int rank,
    int steps) {
  for (int step = 0; step < steps; ++step) {
    model->forward(integer_rows(step, rank, 6)).sum().backward();
    fsdp.clip_grad_norm(1.0);
    adamw.step();
    adamw.zero_grad();
  }
}

// Abstract sockets with a name of sherd's, and files where others leave theirs.
std::set<std::string> left_behind() {
  std::set<std::string> names;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (const auto name = line.find("@sherd"); name != std::string::npos) {
      names.insert(line.substr(name));
    }
  }
  for (const char* folder : {"/dev/shm", "/tmp"}) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().filename().string().find("sherd") == 0) {
        names.insert(entry.path().string());
      }
    }
  }
  return names;
}

// Other tests come and go meanwhile; what is left of one stays.
void expect_nothing_left_since(const std::set<std::string>& before) {
  auto left = left_behind();
  for (const auto& name : before) {
    left.erase(name);
  }
  const SteadyClock clock;
  const auto limit = clock.now() + 10s;
  while (!left.empty() && clock.now() < limit) {
    const auto now = left_behind();
    std::erase_if(left, [&](const auto& name) { return !now.contains(name); });
  }
  EXPECT_THAT(left, testing::IsEmpty());
}

void expect_survivors(
    const RankReport& report, int victim, std::chrono::milliseconds within) {
  for (int rank = 0; rank < static_cast<int>(report.ranks.size()); ++rank) {
    if (rank != victim) {
      EXPECT_EQ(report[rank].exit_code, 0)
          << "rank " << rank << ", signal " << report[rank].signal << ":\n"
          << report[rank].output;
      EXPECT_LT(report.after_strike(rank), within) << "rank " << rank;
    }
  }
}

class SharedMemoryKill : public testing::TestWithParam<unsigned> {};

TEST_P(SharedMemoryKill, IsNamedByAllOthersWithinASecond) {
  std::mt19937 random(GetParam());
  const int ranks = 2 + static_cast<int>(random() % 3);
  const int victim = static_cast<int>(random()) & 0xff;
  const auto before = left_behind();
  RankOptions options;
  options.close_world = false;
  options.strikes = {
      {.child = victim % ranks,
       .point = "warm",
       .signal = SIGKILL,
       .later = std::chrono::microseconds(1 + random() % 40'000)}};
  const auto report = run_ranks(
      ranks,
      [&](World world, Rank& self) {
        Chain model(4, 6);
        auto fsdp = fully_shard(*model, world, shared());
        AdamW adamw(fsdp.named_parameters(), {});
        train(model, fsdp, adamw, world.rank(), 2);
        self.reach("warm");
        const auto error =
            error_of([&] { train(model, fsdp, adamw, world.rank(), 1 << 20); });
        EXPECT_THAT(
            error,
            AllOf(
                HasSubstr(str("rank ", victim % ranks, " has died")),
                HasSubstr("unit ")));
      },
      options);
  EXPECT_EQ(report[victim % ranks].signal, SIGKILL);
  expect_survivors(report, victim % ranks, 1s);
  expect_nothing_left_since(before);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SharedMemoryKill, testing::Range(1U, 21U));

TEST(SharedMemoryFailure, AStoppedRankIsNotResponding) {
  constexpr int kStopped = 1;
  RankOptions options;
  options.close_world = false;
  options.world.deadline = 1s;
  options.strikes = {
      {.child = kStopped,
       .point = "warm",
       .signal = SIGSTOP,
       .later = std::chrono::milliseconds(5)}};
  const auto report = run_ranks(
      3,
      [&](World world, Rank& self) {
        Chain model(4, 6);
        auto fsdp = fully_shard(*model, world, shared());
        AdamW adamw(fsdp.named_parameters(), {});
        train(model, fsdp, adamw, world.rank(), 2);
        self.reach("warm");
        EXPECT_THAT(
            error_of([&] { train(model, fsdp, adamw, world.rank(), 1 << 20); }),
            AllOf(
                HasSubstr(str("rank ", kStopped, " is not responding")),
                HasSubstr("unit ")));
      },
      options);
  expect_survivors(report, kStopped, 4s);
}

// As large as no memory is: what the process may write is what it is told.
TEST(SharedMemoryFailure, AModelThatDoesNotFitIsRefusedBeforeTraining) {
  expect_all_ok(run_ranks(2, [](World world) {
    const rlimit limit{1 << 20, 1 << 20};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    torch::nn::Linear model(1024, 1024);
    EXPECT_THAT(
        error_of([&] { (void)fully_shard(*model, world, shared()); }),
        AllOf(HasSubstr("bytes"), HasSubstr("1048576")));
    // It is as it was.
    EXPECT_EQ(
        error_of([&] { (void)model->forward(torch::ones({1, 1024})); }),
        "no error");
  }));
}

}  // namespace
}  // namespace sherd::test
