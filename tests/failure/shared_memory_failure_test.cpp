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
#include <sherd/autograd/touch.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
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

struct Kill {
  int ranks = 2;
  int victim = 0;
  std::chrono::microseconds later{0};
  int replicas = 1;
  OptimizerAxes axes = OptimizerAxes::kShard;
};

// Long before the deadline, and nothing is left.
void expect_named_by_all_others(const Kill& kill) {
  const auto before = left_behind();
  RankOptions options;
  options.close_world = false;
  options.strikes = {
      {.child = kill.victim,
       .point = "warm",
       .signal = SIGKILL,
       .later = kill.later}};
  const auto report = run_ranks(
      kill.ranks,
      [&](World world, Rank& self) {
        Chain model(4, 6);
        auto shard = shared();
        shard.optimizer_axes = kill.axes;
        auto fsdp = fully_shard(
            *model, Mesh(world, {.replicate = kill.replicas}), shard);
        AdamW adamw(fsdp.named_parameters(), {});
        train(model, fsdp, adamw, world.rank(), 2);
        self.reach("warm");
        const auto error =
            error_of([&] { train(model, fsdp, adamw, world.rank(), 1 << 20); });
        EXPECT_THAT(
            error,
            AllOf(
                HasSubstr(str("rank ", kill.victim, " has died")),
                HasSubstr("unit ")));
      },
      options);
  EXPECT_EQ(report[kill.victim].signal, SIGKILL);
  expect_survivors(report, kill.victim, 10s);
  expect_nothing_left_since(before);
}

class SharedMemoryKill : public testing::TestWithParam<unsigned> {
 protected:
  int draw(unsigned below) { return static_cast<int>(random_() % below); }
  std::chrono::microseconds later() {
    return std::chrono::microseconds(1 + draw(40'000));
  }

 private:
  std::mt19937 random_{GetParam()};
};

TEST_P(SharedMemoryKill, IsNamedByAllOthersLongBeforeTheDeadline) {
  const int ranks = 2 + draw(3);
  expect_named_by_all_others(
      {.ranks = ranks,
       .victim = draw(static_cast<unsigned>(ranks)),
       .later = later()});
}

INSTANTIATE_TEST_SUITE_P(Seeds, SharedMemoryKill, testing::Range(1U, 21U));

// One of the others shares no axis with it.
class SharedMemoryHybridKill : public SharedMemoryKill {};

TEST_P(SharedMemoryHybridKill, IsNamedByAllOthersLongBeforeTheDeadline) {
  expect_named_by_all_others(
      {.ranks = 4,
       .victim = draw(4),
       .later = later(),
       .replicas = 2,
       .axes =
           GetParam() % 2 == 0 ? OptimizerAxes::kBoth : OptimizerAxes::kShard});
}

INSTANTIATE_TEST_SUITE_P(Seeds, SharedMemoryHybridKill, testing::Range(1U, 9U));

// Each rank has a matrix whose update takes much longer than the strike waits:
// the others wait for its owner.
class SharedMemoryMuonKill : public SharedMemoryKill {};

TEST_P(SharedMemoryMuonKill, IsNamedAndNoValueMoves) {
  const int ranks = 2 + draw(3);
  const int victim = draw(static_cast<unsigned>(ranks));
  RankOptions options;
  options.close_world = false;
  options.strikes = {
      {.child = victim,
       .point = "step",
       .signal = SIGKILL,
       .later = std::chrono::microseconds(1 + draw(5'000))}};
  const auto report = run_ranks(
      ranks,
      [&](World world, Rank& self) {
        constexpr std::int64_t kWidth = 256;
        torch::set_num_threads(1);
        Chain model(ranks, kWidth);
        auto sharing = shared();
        sharing.share_gradients = true;
        auto fsdp = fully_shard(*model, world, sharing);
        Muon muon(
            split(fsdp.named_parameters(), {"layers.*.weight"}).matching,
            {.iterations = 20});
        model->forward(integer_rows(0, world.rank(), kWidth)).sum().backward();
        std::vector<torch::Tensor> before;
        for (const auto& slice : fsdp.parameters()) {
          before.push_back(slice.detach().clone());
        }
        self.reach("step");
        EXPECT_THAT(
            error_of([&] { muon.step(); }),
            HasSubstr(str("rank ", victim, " has died")));
        const auto after = fsdp.parameters();
        for (std::size_t i = 0; i < before.size(); ++i) {
          EXPECT_TRUE(torch::equal(after[i], before[i])) << i;
        }
      },
      options);
  EXPECT_EQ(report[victim].signal, SIGKILL);
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != victim) {
      EXPECT_EQ(report[rank].exit_code, 0) << report[rank].output;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SharedMemoryMuonKill, testing::Range(1U, 7U));

TEST(SharedMemoryFailure, AStoppedRankIsNotResponding) {
  constexpr int kStopped = 1;
  RankOptions options;
  options.close_world = false;
  options.world.deadline = 3s;
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
  expect_survivors(report, kStopped, 10s);
}

// A raw pointer may write this rank's slice, if only by mistake, and never that
// of a peer: it ends the rank that has the mistake instead of the other's values.
class SharedMemoryStrayWrite : public testing::TestWithParam<bool> {};

TEST_P(SharedMemoryStrayWrite, EndsTheRankThatWritesIntoAPeersSlice) {
  RankOptions options;
  options.close_world = false;
  const auto report = run_ranks(
      2,
      [](World world, Rank& self) {
        torch::manual_seed(1);
        torch::nn::Linear model(256, 256);
        auto shard = shared();
        if (GetParam()) {
          shard.mixed_precision.param_dtype = torch::kBFloat16;
        }
        auto fsdp = fully_shard(*model, world, shard);
        AdamW adamw(fsdp.named_parameters(), {});
        const auto step = [&] {
          model->forward(torch::ones({2, 256}, model->weight.scalar_type()))
              .sum()
              .backward();
          adamw.step();
          adamw.zero_grad();
        };
        step();
        step();
        const auto before = fsdp.parameters().at(0).detach().clone();
        if (world.rank() == 1) {
          const auto whole = touch(model->weight);
          auto* bytes = static_cast<char*>(model->weight.mutable_data_ptr());
          bytes[model->weight.nbytes() - 1] = 77;  // Its own.
          self.report("wrote its own");
          bytes[0] = 77;
          self.report(", and a peer's");
          return;
        }
        EXPECT_THAT(
            error_of([&] {
              step();
              step();
            }),
            HasSubstr("rank 1 has died"));
        EXPECT_TRUE(torch::equal(fsdp.parameters().at(0), before));
      },
      options);
  EXPECT_EQ(report[1].signal, SIGSEGV) << report[1].output;
  EXPECT_EQ(report[1].result, "wrote its own");
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
}

INSTANTIATE_TEST_SUITE_P(
    Mixed,
    SharedMemoryStrayWrite,
    testing::Bool(),
    [](const testing::TestParamInfo<bool>& mixed) {
      return mixed.param ? "BFloat16" : "Fp32";
    });

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
