// SPDX-License-Identifier: Apache-2.0
//
// A CastForward trains to the bits of casts that are written into the model by hand (B6).
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <sherd/fsdp/cast_forward.h>

namespace sherd::test {
namespace {

using Outputs = std::pair<torch::Tensor, torch::Tensor>;

// Several layers, and code between them that sees the dtype of its inputs.
struct ResidualImpl : torch::nn::Module {
  torch::nn::Linear up{nullptr}, down{nullptr};
  c10::ScalarType seen = c10::ScalarType::Undefined;
  ResidualImpl() {
    up = register_module("up", torch::nn::Linear(6, 10));
    down = register_module("down", torch::nn::Linear(10, 6));
  }
  Outputs forward(const torch::Tensor& x, const torch::Tensor& scale) {
    seen = x.scalar_type();
    const auto hidden = torch::tanh(up(x));
    return {x + scale * down(hidden), hidden.sum()};
  }
};

struct ResidualByHandImpl : ResidualImpl {
  std::optional<c10::ScalarType> inputs, outputs;
  Outputs forward(torch::Tensor x, torch::Tensor scale) {
    const auto cast = [](const torch::Tensor& tensor, auto dtype) {
      return dtype ? tensor.to(*dtype) : tensor;
    };
    const auto [y, sum] =
        ResidualImpl::forward(cast(x, inputs), cast(scale, inputs));
    return {cast(y, outputs), cast(sum, outputs)};
  }
};

template <typename Block>
struct TwoResidualsImpl : torch::nn::Module {
  std::shared_ptr<Block> first = std::make_shared<Block>();
  std::shared_ptr<Block> second = std::make_shared<Block>();
  TwoResidualsImpl() {
    register_module("first", first);
    register_module("second", second);
    torch::manual_seed(4);
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.uniform_(-0.5, 0.5);
    }
  }
  torch::Tensor loss(int batch) {
    torch::manual_seed(batch);
    const auto x = torch::randn({3, 6});
    const auto scale = torch::full({6}, 0.7);
    const auto [y, sum] = first->forward(x, scale);
    const auto [z, other] = second->forward(y, scale);
    return (z.square().mean() + 0.01 * (sum + other)).to(torch::kFloat);
  }
};

using ByForward = TwoResidualsImpl<CastForward<ResidualImpl>>;
using ByHandOfUser = TwoResidualsImpl<ResidualByHandImpl>;

// The second returns fp32, which the first one's code does not see.
FullyShardOptions residual_options(Strategy strategy, ExchangeKind exchange) {
  FullyShardOptions options;
  options.strategy = strategy;
  options.exchange = exchange;
  options.mixed_precision = {.param_dtype = torch::kBFloat16};
  return options;
}

void expect_equal_steps(const World& world, const FullyShardOptions& options) {
  ByForward model;
  ByHandOfUser reference;
  reference.first->inputs = reference.second->inputs = torch::kBFloat16;
  reference.second->outputs = torch::kFloat;
  auto with_output = options;
  with_output.units = units::any_of(
      {units::with_options(
           units::by_name("second"), {.output_dtype = torch::kFloat}),
       units::by_name("first")});
  auto by_name = options;
  by_name.units =
      units::any_of({units::by_name("first"), units::by_name("second")});
  auto fsdp = fully_shard(model, world, with_output);
  auto expected = fully_shard(reference, world, by_name);
  for (int step = 0; step < 3; ++step) {
    const int batch = 10 * step + world.rank();
    auto loss = model.loss(batch);
    auto wanted = reference.loss(batch);
    loss.backward();
    wanted.backward();
    ASSERT_TRUE(torch::equal(loss, wanted));
    EXPECT_EQ(model.first->seen, torch::kBFloat16);
    const auto slices = fsdp.parameters();
    const auto others = expected.parameters();
    const torch::NoGradGuard no_grad;
    for (std::size_t s = 0; s < slices.size(); ++s) {
      ASSERT_TRUE(torch::equal(slices[s].grad(), others[s].grad()));
      slices[s].sub_(slices[s].grad(), 0.5);
      others[s].sub_(others[s].grad(), 0.5);
    }
    fsdp.publish();
    expected.publish();
  }
}

class CastForwardParity : public testing::TestWithParam<int> {};

TEST_P(CastForwardParity, B6TrainsToTheBitsOfCastsWrittenByHand) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto exchange :
         {ExchangeKind::kAuto, ExchangeKind::kCollective}) {
      expect_equal_steps(
          world, residual_options(Strategy::kFullShard, exchange));
    }
    expect_equal_steps(
        world, residual_options(Strategy::kNoShard, ExchangeKind::kAuto));
  }));
}

// Inputs that were rounded to bf16 would differ from those of a plain model.
TEST_P(CastForwardParity, B6ScopesInFullPrecisionTakeInputsAsTheyAre) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    ByForward plain;
    ByForward model;
    auto fsdp = fully_shard(
        model, world,
        {.units = units::by_name("*"),
         .mixed_precision = {.param_dtype = torch::kBFloat16}});
    const torch::NoGradGuard no_grad;
    const auto expected = plain.loss(1);
    {
      const auto scope = fsdp.full_precision();
      EXPECT_TRUE(torch::equal(model.loss(1), expected));
    }
    EXPECT_FALSE(torch::equal(model.loss(1), expected));
    {
      const auto scope = fsdp.summon_full_parameters(
          {.read_only = true, .full_precision = true});
      EXPECT_TRUE(torch::equal(model.loss(1), expected));
    }
    EXPECT_FALSE(torch::equal(model.loss(1), expected));
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    CastForwardParity,
    testing::Values(1, 2, 3),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
