// SPDX-License-Identifier: Apache-2.0
//
// Sharded training equals training in one process. Test ids (T01, ...) are
// listed in docs/design/tests.md.
#include "support/parity.h"

#include "support/ranks.h"

namespace sherd::test {
namespace {

struct MlpImpl : torch::nn::Module {
  // Odd shapes; the last layer is narrower than the number of ranks.
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  MlpImpl() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(7, 15));
    second = register_module("second", torch::nn::Linear(15, 5));
    third = register_module("third", torch::nn::Linear(5, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return third(torch::tanh(second(torch::tanh(first(x)))));
  }
};
TORCH_MODULE(Mlp);

torch::Tensor rows_of(int step, std::int64_t begin, std::int64_t end) {
  torch::manual_seed(100 + step);
  return torch::randn({16, 7}).slice(0, begin, end);
}

torch::Tensor mlp_loss(
    Mlp& model, int step, std::int64_t begin, std::int64_t end) {
  const auto x = rows_of(step, begin, end);
  return (model->forward(x) - x.sum(1, true)).square().mean();
}

class FsdpParity : public testing::TestWithParam<int> {};

TEST_P(FsdpParity, T01OddShapesEqualOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Parity options;
    options.shard.units = units::by_name("*");
    expect_parity<Mlp>(world, [] { return Mlp(); }, mlp_loss, options);
  }));
}

TEST_P(FsdpParity, T02EveryStrategyEqualsOneProcess) {
  for (const auto strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    expect_all_ok(run_ranks(GetParam(), [&](World world) {
      Parity options;
      options.shard.units = units::by_name("*");
      options.shard.strategy = strategy;
      expect_parity<Mlp>(world, [] { return Mlp(); }, mlp_loss, options);
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    FsdpParity,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
