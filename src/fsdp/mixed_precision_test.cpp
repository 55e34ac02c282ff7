// SPDX-License-Identifier: Apache-2.0
//
// Mixed precision over the fake exchange: low-precision parameters, fp32 shards.
// Beside processes and real models: tests/numerics/mixed_precision_test.cpp.
#include <map>
#include <gmock/gmock.h>
#include <sherd/base/error.h>
#include "fsdp/fsdp_engine.h"
#include "fsdp/testing.h"

namespace sherd::fsdp {
namespace {

using std::chrono::microseconds;
using test::FakeRank;
using test::run_fake_ranks;
using ::testing::HasSubstr;
using testing::loss_of;
using testing::Net;
using testing::rows_of;

constexpr int kRanks = 3;
constexpr std::int64_t kRows = 2;  // Per rank.
constexpr double kRate = 0.1;
constexpr int kSteps = 3;

using Values = std::map<std::string, at::Tensor>;

void step_by(const at::Tensor& value, const at::Tensor& gradient) {
  value.sub_(gradient, kRate);
}

// What every engine is compared with: fp32 values, forward and backward of each
// rank in bf16 by hand, gradients added up in fp32.
Values trained_by_hand(c10::ScalarType reduce_dtype) {
  const torch::NoGradGuard no_grad;
  Net masters;
  Net low;
  low->to(torch::kBFloat16);
  for (int step = 0; step < kSteps; ++step) {
    Values sums;
    for (int rank = 0; rank < kRanks; ++rank) {
      const torch::AutoGradMode with_gradients(true);
      const auto x = rows_of(step, rank * kRows, (rank + 1) * kRows);
      const auto target = x.sum(1, true);
      (low->forward(x.to(torch::kBFloat16)) - target)
          .square()
          .mean()
          .backward();
      for (const auto& item : low->named_parameters()) {
        if (item.value().grad().defined()) {
          const auto sent =
              item.value().grad().to(reduce_dtype).to(torch::kFloat);
          auto& sum = sums[item.key()];
          sum = sum.defined() ? sum + sent : sent;
          item.value().mutable_grad().reset();
        }
      }
    }
    for (const auto& item : masters->named_parameters()) {
      if (const auto sum = sums[item.key()]; sum.defined()) {
        step_by(item.value(), sum * (1.0 / kRanks));
      }
      low->named_parameters()[item.key()].copy_(item.value());
    }
  }
  Values values;
  for (const auto& item : masters->named_parameters()) {
    values[item.key()] = item.value().detach().clone();
  }
  return values;
}

std::shared_ptr<FsdpEngine> runtime_of(
    FakeRank& self,
    const torch::nn::Module& module,
    const MixedPrecision& precision,
    Strategy strategy) {
  FsdpEngine::Options options;
  options.rank = self.rank;
  options.ranks = kRanks;
  options.strategy = strategy;
  auto runtime = std::make_shared<FsdpEngine>(
      build_units(
          module, kRanks,
          {.units = units::by_name("*"), .mixed_precision = precision}),
      self.network.exchange(self.rank), options);
  runtime->start();
  return runtime;
}

void train_step(Net& net, FsdpEngine& runtime, int step, int rank) {
  loss_of(net, rows_of(step, rank * kRows, (rank + 1) * kRows)).backward();
  const torch::NoGradGuard no_grad;
  for (const auto& item : runtime.named_parameters().items) {
    if (item.slice.grad().defined()) {
      EXPECT_EQ(item.slice.scalar_type(), torch::kFloat) << item.name;
      EXPECT_EQ(item.slice.grad().scalar_type(), torch::kFloat) << item.name;
      step_by(item.slice, item.slice.grad());
      item.slice.mutable_grad().reset();
    }
  }
  runtime.publish();
}

TEST(MixedPrecisionOverTheFake, T20EqualsARankByRankReferenceInEveryBit) {
  for (const auto reduce : {torch::kBFloat16, torch::kFloat}) {
    const auto expected = trained_by_hand(reduce);
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      for (std::uint64_t seed = 1; seed <= 5; ++seed) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed);
        run_fake_ranks(
            kRanks, {.seed = seed, .delay_max = microseconds(200)},
            [&](FakeRank& self) {
              Net net;
              const auto runtime = runtime_of(
                  self, *net,
                  {.param_dtype = torch::kBFloat16, .reduce_dtype = reduce},
                  strategy);
              for (int step = 0; step < kSteps; ++step) {
                train_step(net, *runtime, step, self.rank);
              }
              runtime->begin_summon({.read_only = true});
              for (const auto& [name, value] : expected) {
                EXPECT_TRUE(torch::equal(runtime->summoned(name), value))
                    << name;
                EXPECT_TRUE(torch::equal(
                    net->named_parameters()[name].detach(),
                    value.to(torch::kBFloat16)))
                    << name;
              }
              runtime->end_summon();
              self.barrier.arrive_and_wait();
            });
      }
    }
  }
}

TEST(MixedPrecisionOverTheFake, T43OnlyWrittenElementsComeBackFromASummon) {
  run_fake_ranks(kRanks, exchange::FakeOptions{}, [](FakeRank& self) {
    Net net;
    const auto before = net->first->weight.detach().clone();
    const auto runtime = runtime_of(
        self, *net, {.param_dtype = torch::kBFloat16}, Strategy::kFullShard);
    const std::string name = "first.weight";
    const torch::NoGradGuard no_grad;
    runtime->begin_summon({});
    EXPECT_EQ(net->first->weight.scalar_type(), torch::kBFloat16);
    net->first->weight[0].fill_(0.3);
    net->first->weight[1].fill_(7);
    runtime->summoned(name)[1].fill_(0.3);
    runtime->summoned(name)[2].fill_(0.7);
    runtime->end_summon();

    auto expected = before.clone();
    expected[0] = torch::tensor(0.3).to(torch::kBFloat16).to(torch::kFloat);
    expected[1] = 0.3F;  // In both: that of full precision.
    expected[2] = 0.7F;
    runtime->begin_summon({.read_only = true});
    EXPECT_TRUE(torch::equal(runtime->summoned(name), expected));
    EXPECT_FALSE(torch::equal(
        expected[3], expected[3].to(torch::kBFloat16).to(torch::kFloat)));
    runtime->end_summon();
    self.barrier.arrive_and_wait();
  });
}

// A summon outside the byte budget, then training inside it again.
TEST(MixedPrecisionOverTheFake, ASummonDoesNotCountAgainstTheBudget) {
  run_fake_ranks(kRanks, exchange::FakeOptions{}, [](FakeRank& self) {
    Net net;
    const auto runtime = runtime_of(
        self, *net, {.param_dtype = torch::kBFloat16}, Strategy::kFullShard);
    for (int step = 0; step < kSteps; ++step) {
      train_step(net, *runtime, step, self.rank);
      runtime->begin_summon({.read_only = true});
      runtime->end_summon();
    }
    const auto report = runtime->report();
    EXPECT_GT(report.budget_bytes, 0);
    EXPECT_LE(report.unsharded_bytes_peak, report.budget_bytes);
    self.barrier.arrive_and_wait();
  });
}

ModelUnits units_with(
    const torch::nn::Module& module, const MixedPrecision& precision) {
  return build_units(
      module, 2, {.units = units::none(), .mixed_precision = precision});
}

TEST(MixedPrecisionFlats, IntegersHaveNoReduceDtypeAndFrozenParametersHaveOne) {
  Net net;
  net->register_parameter(
      "count", torch::ones({3}, torch::kLong), /*requires_grad=*/false);
  const auto model = units_with(
      *net, {.param_dtype = torch::kHalf, .reduce_dtype = torch::kFloat});
  ASSERT_EQ(model.units.size(), 2U);
  auto flats = model.units[0].flats;
  flats.push_back(model.units[1].flats.at(0));
  ASSERT_EQ(flats.size(), 3U);
  for (const auto& flat : flats) {
    if (flat.dtype == torch::kLong) {
      EXPECT_EQ(flat.unsharded_dtype(), torch::kLong);
    } else {
      EXPECT_EQ(flat.dtype, torch::kFloat);
      EXPECT_EQ(flat.unsharded_dtype(), torch::kHalf);
      EXPECT_EQ(flat.slot_dtype(), torch::kFloat);
    }
  }
}

TEST(MixedPrecisionFlats, ParametersStartOn64BytesInTheNarrowerDtype) {
  const Net net;
  const auto model = units_with(*net, {.param_dtype = torch::kBFloat16});
  for (const auto& flat : model.units[0].flats) {
    for (const auto offset : flat.layout.offsets) {
      EXPECT_EQ(offset * 2 % 64, 0);
    }
  }
}

TEST(MixedPrecisionFlats, NormsWithRunningStatisticsKeepTheirDtype) {
  torch::nn::Sequential net(
      torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
  const auto model = units_with(
      *net, {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat});
  ASSERT_EQ(model.units[0].flats.size(), 2U);
  EXPECT_EQ(model.units[0].flats[0].unsharded_dtype(), torch::kBFloat16);
  const auto& kept = model.units[0].flats[1];
  EXPECT_EQ(kept.unsharded_dtype(), torch::kFloat);
  EXPECT_EQ(kept.slot_dtype(), torch::kFloat);
  EXPECT_FALSE(kept.param_dtype.has_value());
  EXPECT_THAT(kept.names, ::testing::ElementsAre("1.weight", "1.bias"));
}

TEST(MixedPrecisionFlats, UnsetNothingIsCast) {
  const Net net;
  const auto model = units_with(*net, {});
  for (const auto& flat : model.units[0].flats) {
    EXPECT_FALSE(flat.is_cast());
    EXPECT_EQ(flat.slot_dtype(), flat.dtype);
  }
}

std::string refusal(
    const torch::nn::Module& module, const MixedPrecision& precision) {
  try {
    units_with(module, precision);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MixedPrecisionRefusals, NameWhatWasExpectedAndFound) {
  Net net;
  EXPECT_THAT(
      refusal(*net, {.param_dtype = torch::kInt}),
      HasSubstr("mixed_precision.param_dtype is Int; expected Float"));
  EXPECT_THAT(
      refusal(*net, {.param_dtype = torch::kDouble}),
      HasSubstr("mixed_precision.param_dtype is Double"));
  EXPECT_THAT(
      refusal(*net, {.reduce_dtype = torch::kLong}),
      HasSubstr("mixed_precision.reduce_dtype is Long; expected Float"));
  net->second->to(torch::kDouble);
  EXPECT_THAT(
      refusal(*net, {.param_dtype = torch::kBFloat16}),
      HasSubstr("parameter second.weight is of type Double"));
  EXPECT_THAT(
      refusal(*net, {.reduce_dtype = torch::kBFloat16}),
      HasSubstr("parameter second.weight is of type Double"));
}

TEST(MixedPrecisionRefusals, RanksMustAgree) {
  run_fake_ranks(2, exchange::FakeOptions{}, [](FakeRank& self) {
    const Net net;
    MixedPrecision precision;
    if (self.rank == 1) {
      precision.reduce_dtype = torch::kBFloat16;
    }
    exchange::ModelSpec spec = testing::spec_of(units_with(*net, precision));
    const auto exchange = self.network.exchange(self.rank);
    EXPECT_THAT(
        exchange->open(spec).message(), HasSubstr("reduced as BFloat16"));
    self.barrier.arrive_and_wait();
  });
}

}  // namespace
}  // namespace sherd::fsdp
