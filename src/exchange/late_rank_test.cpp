// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are stopped at any moment of a step and go on when their peer has
// given them up and uses its memory for something else. Steps of several pairs of
// ranks at a time, each pair with an exchange of its own.
#include "exchange/contract_testing.h"
#include "exchange/shared_memory_exchange.h"
#include "support/ranks.h"
#include "world/transport.h"

#include <chrono>
#include <csignal>
#include <random>
#include <thread>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include "base/check.h"
#include "exchange/collective_exchange.h"
#include "world/peer_watch.h"
#include "world/rank_record.h"
#include "world/world_impl.h"

namespace sherd::exchange::contract {
namespace {

using namespace std::chrono_literals;

constexpr int kPairs = 5;
constexpr int kRuns = 10;  // Fifty moments.
constexpr float kGuard = 1e30F;

enum class Via { kSharedMemory, kMessages };

// The deadline of each wait once all have connected, which includes those of opening.
constexpr std::chrono::milliseconds kLateRankDeadline = 1500ms;

// One unit whose gradient travels alone, and a small one.
ModelSpec late_model() {
  return make_model(2, {{{.numels = {40'000}}}, {{.numels = {900}}}});
}

std::unique_ptr<Exchange> make(
    Via via, const World& world, int pair, bool sum_thread) {
  const std::vector<int> ranks = {2 * pair, 2 * pair + 1};
  const auto transport = [&](const char* what,
                             std::chrono::milliseconds deadline) {
    return world::make_c10d_transport(
        world, str("pair", pair, what), ranks, deadline);
  };
  if (via == Via::kMessages) {
    auto gather = transport("/gather", kLateRankDeadline);
    return make_collective_exchange(
        std::move(gather), transport("/reduce", kLateRankDeadline));
  }
  auto connected = transport("/transport", 20s);
  world.impl()->options.deadline = kLateRankDeadline;
  return make_shared_memory_exchange(
      world, str("pair", pair), std::move(connected), sum_thread);
}

bool all_are(const at::Tensor& values, double value) {
  return at::equal(values, at::full_like(values, value));
}

// Trains in steps, of which each value tells step and rank, until one fails. What
// succeeds has the right values.
class Steps {
 public:
  Steps(Exchange& exchange, int index) : exchange_(exchange), index_(index) {
    for (int unit = 0; unit < 2; ++unit) {
      memories_.push_back(exchange_.shard_memory(unit, 0));
    }
  }

  Status until_failure() {
    Status status;
    while (status.ok()) {
      status = step();
      ++step_;
    }
    return status;
  }
  // Calls for which both ranks must have come, and which have succeeded.
  int meetings() const { return meetings_; }

  // What is this rank's again after a failure.
  void fill_own(float value) {
    given_.fill_(value);
    for (const auto& memory : memories_) {
      memory.gradient.fill_(value);
      memory.shard.fill_(value);
    }
  }
  bool own_is(float value) const {
    return all_are(given_, value) &&
        std::ranges::all_of(memories_, [&](const ShardMemory& memory) {
             return all_are(memory.gradient, value) &&
                 all_are(memory.shard, value);
           });
  }
  // Frees what lies in the memory of the exchange.
  void let_go() { memories_.clear(); }

 private:
  Status step() {
    for (const auto& memory : memories_) {
      memory.shard.fill_(step_);
    }
    Status status = exchange_.publish(static_cast<std::uint64_t>(step_) + 1);
    for (int unit = 0; unit < 2 && status.ok(); ++unit) {
      status = visit(unit);
    }
    exchange_.begin_backward();
    for (int unit = 1; unit >= 0 && status.ok(); --unit) {
      status = reduce(unit);
    }
    if (status.ok()) {
      status = exchange_.end_backward(backward_end(model_)).status();
    }
    if (!status.ok()) {
      return status;
    }
    ++meetings_;
    for (const auto& memory : memories_) {
      EXPECT_TRUE(all_are(memory.gradient, 2 * step_ + 3)) << "step " << step_;
    }
    auto number = torch::full({1}, step_, torch::kDouble);
    status = exchange_.all_reduce(number, ScalarReduceOp::kSum);
    if (status.ok()) {
      ++meetings_;
      EXPECT_EQ(number.item<double>(), 2 * step_);
    }
    return status;
  }

  Status visit(UnitId unit) {
    if (auto status = exchange_.start_unshard(unit, {}); !status.ok()) {
      return status;
    }
    const auto whole = exchange_.wait_for_unshard(unit);
    if (!whole.ok()) {
      return whole.status();
    }
    // More than once: a stop is likely to fall into it.
    for (int i = 0; i < 8; ++i) {
      EXPECT_TRUE(all_are(
          at::from_blob(
              whole.value()[0], {model_.unit(unit).flats[0].layout.numel},
              at::kFloat),
          step_))
          << "unit " << unit << ", step " << step_;
    }
    exchange_.reshard(unit);
    return {};
  }

  Status reduce(UnitId unit) {
    const auto& spec = model_.unit(unit);
    auto options = reduce_options(spec);
    const auto slot = exchange_.gradient_slot(unit).at(0);
    slot.fill_(0);
    const float mine = static_cast<float>(step_ + 1 + index_);
    if (unit == 0) {
      given_ =
          torch::full({40'000}, mine);  // In shared memory, if there is some.
      options.gradients = {given_};
    } else {
      slot.narrow(0, 0, spec.flats[0].layout.numels[0]).fill_(mine);
    }
    return exchange_.start_reduce(unit, options);
  }

  Exchange& exchange_;
  const int index_;
  const ModelSpec model_ = late_model();
  std::vector<ShardMemory> memories_;
  at::Tensor given_ = torch::zeros({40'000});
  int step_ = 0;
  int meetings_ = 0;
};

struct Moment {
  std::chrono::milliseconds later{0};
  bool sum_thread = false;
  bool unmaps = false;
};

// Of one run.
struct PairRun {
  Via via = Via::kSharedMemory;
  std::vector<Moment> moments{};  // By pair.
  Marks opened{}, ended{};
};

// Stops the other one, gives it up, uses its own memory, lets the other go on.
int give_up(
    const World& world, PairRun& run, std::unique_ptr<Exchange> exchange) {
  const auto& moment = run.moments[static_cast<std::size_t>(world.rank() / 2)];
  const int peer = world.rank() + 1;
  const auto pid = world.impl()->records.at(static_cast<std::size_t>(peer)).pid;
  Steps steps(*exchange, 0);
  Status status;
  {
    const std::jthread stopper([&] {
      world.impl()->watch->wait_lost(moment.later);  // Some moment.
      ::kill(static_cast<pid_t>(pid), SIGSTOP);
    });
    status = steps.until_failure();
  }
  EXPECT_THAT(status.message(), testing::HasSubstr(str("rank ", peer)));
  if (moment.unmaps) {
    steps.let_go();
    exchange.reset();
  } else {
    steps.fill_own(kGuard);
  }
  ::kill(static_cast<pid_t>(pid), SIGCONT);
  run.ended.wait_for(peer);
  EXPECT_TRUE(moment.unmaps || steps.own_is(kGuard))
      << "it was written after the failure: " << status.message();
  return steps.meetings();
}

int be_late(
    const World& world, PairRun& run, std::unique_ptr<Exchange> exchange) {
  Steps steps(*exchange, 1);
  const auto status = steps.until_failure();
  EXPECT_THAT(
      status.message(), testing::HasSubstr(str("rank ", world.rank() - 1)));
  steps.let_go();
  exchange.reset();
  run.ended.set(world.rank());
  return steps.meetings();
}

void run_pairs(PairRun& run) {
  test::RankOptions options;
  options.close_world = false;
  const auto report = test::run_ranks(
      2 * kPairs,
      [&](World world, test::Rank& self) {
        const auto& moment =
            run.moments[static_cast<std::size_t>(world.rank() / 2)];
        auto exchange =
            make(run.via, world, world.rank() / 2, moment.sum_thread);
        exchange->open(late_model()).throw_if_failed();
        run.opened.set(world.rank());
        run.opened.wait_for(world.rank() ^ 1);
        const auto part = world.rank() % 2 == 0 ? give_up : be_late;
        self.report(str(part(world, run, std::move(exchange))));
      },
      options);
  test::expect_all_ok(report);
  for (int pair = 0; pair < kPairs; ++pair) {
    const auto& early = report[2 * pair].result;
    const auto& late = report[2 * pair + 1].result;
    ASSERT_FALSE(early.empty() || late.empty());
    // What the other one sent before it gave up is complete or is nothing: over
    // messages a late rank may have the right sums once more.
    EXPECT_LE(
        std::stoi(late), std::stoi(early) + (run.via == Via::kMessages ? 1 : 0))
        << "pair " << pair
        << ": the late rank succeeded where the other failed";
  }
}

class LateRank : public testing::TestWithParam<Via> {};
INSTANTIATE_TEST_SUITE_P(
    Via,
    LateRank,
    testing::Values(Via::kSharedMemory, Via::kMessages),
    [](const auto& one) {
      return std::string(
          one.param == Via::kMessages ? "Messages" : "SharedMemory");
    });

TEST_P(LateRank, FailsAndNeitherSeesNorChangesWhatItsPeerDoesAfterwards) {
  const auto seed = std::random_device()();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int i = 0; i < kRuns; ++i) {
    PairRun run{.via = GetParam()};
    for (int pair = 0; pair < kPairs; ++pair) {
      run.moments.push_back(
          {.later = std::chrono::milliseconds(random() % 40),
           .sum_thread = pair % 2 == 0,
           .unmaps = i == 0});
    }
    run_pairs(run);
  }
}

}  // namespace
}  // namespace sherd::exchange::contract
