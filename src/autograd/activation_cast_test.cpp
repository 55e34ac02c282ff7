// SPDX-License-Identifier: Apache-2.0
#include "autograd/activation_cast.h"

#include <set>
#include <string>
#include <gmock/gmock.h>
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

namespace nn = torch::nn;
using ::testing::HasSubstr;

// The output, then gradients of the inputs, then gradients of parameters.
using Results = std::vector<at::Tensor>;

struct Layer {
  const char* name;
  std::function<std::shared_ptr<nn::Module>()> make;
  // Runs on fp32 inputs.
  std::function<at::Tensor(nn::Module&, const std::vector<at::Tensor>&)> run;
  std::vector<std::vector<std::int64_t>> inputs;
};
void PrintTo(const Layer& layer, std::ostream* out) { *out << layer.name; }

// A layer with one input.
template <typename Module>
Layer layer(const char* name, Module module, std::vector<std::int64_t> input) {
  return {
      name,
      [module] { return module.ptr()->clone(); },
      [](nn::Module& made, const std::vector<at::Tensor>& x) {
        return made.as<typename Module::ContainedType>()->forward(x[0]);
      },
      {std::move(input)}};
}

struct WeightImpl : nn::Module {
  explicit WeightImpl(std::vector<std::int64_t> sizes)
      : weight(register_parameter("weight", torch::randn(sizes))) {}
  at::Tensor weight;
};

// An operator on a parameter and inputs.
Layer on_weight(
    const char* name,
    std::vector<std::int64_t> weight,
    std::vector<std::vector<std::int64_t>> inputs,
    std::function<at::Tensor(
        const at::Tensor& w, const std::vector<at::Tensor>& x)> run) {
  return {
      name, [weight] { return std::make_shared<WeightImpl>(weight); },
      [run](nn::Module& made, const std::vector<at::Tensor>& x) {
        return run(made.as<WeightImpl>()->weight, x);
      },
      std::move(inputs)};
}

at::Tensor lstm_of(nn::Module& made, const std::vector<at::Tensor>& x) {
  return std::get<0>(made.as<nn::LSTMImpl>()->forward(x[0]));
}

at::Tensor gru_of(nn::Module& made, const std::vector<at::Tensor>& x) {
  return std::get<0>(made.as<nn::GRUImpl>()->forward(x[0], x[1]));
}

at::Tensor attention_of(nn::Module& made, const std::vector<at::Tensor>& x) {
  auto* layer = made.as<nn::MultiheadAttentionImpl>();
  return std::get<0>(layer->forward(x[0], x[1], x[1]));
}

std::vector<Layer> layers() {
  torch::manual_seed(kSeed);
  const auto lstm = nn::LSTM(nn::LSTMOptions(4, 3).num_layers(2));
  const auto gru = nn::GRU(4, 3);
  const auto attention = nn::MultiheadAttention(8, 2);
  return {
      layer("Linear", nn::Linear(4, 3), {2, 4}),
      layer("Conv1d", nn::Conv1d(3, 4, 2), {2, 3, 5}),
      layer("Conv2d", nn::Conv2d(3, 4, 2), {2, 3, 5, 5}),
      layer("Conv3d", nn::Conv3d(2, 3, 2), {1, 2, 4, 4, 4}),
      layer("ConvTranspose2d", nn::ConvTranspose2d(3, 4, 2), {2, 3, 5, 5}),
      layer("LayerNorm", nn::LayerNorm(nn::LayerNormOptions({6})), {3, 6}),
      layer("GroupNorm", nn::GroupNorm(2, 4), {3, 4, 5}),
      layer(
          "BatchNormOfTheBatchAlone",
          nn::BatchNorm1d(nn::BatchNorm1dOptions(4).track_running_stats(false)),
          {6, 4}),
      layer("PReLU", nn::PReLU(), {3, 4}),
      {"LSTM", [lstm] { return lstm.ptr()->clone(); }, lstm_of, {{5, 2, 4}}},
      {"GRU",
       [gru] { return gru.ptr()->clone(); },
       gru_of,
       {{5, 2, 4}, {1, 2, 3}}},
      {"MultiheadAttention",
       [attention] { return attention.ptr()->clone(); },
       attention_of,
       {{5, 2, 8}, {3, 2, 8}}},
      on_weight(
          "mm", {4, 3}, {{2, 4}}, [](auto& w, auto& x) { return x[0].mm(w); }),
      on_weight(
          "MmOfAView", {4, 3}, {{2, 3}},
          [](auto& w, auto& x) { return x[0].mm(w.t()); }),
      on_weight(
          "MatmulFromTheLeft", {4, 3}, {{2, 3, 2}},
          [](auto& w, auto& x) { return at::matmul(w, x[0]); }),
      on_weight(
          "bmm", {2, 3, 4}, {{2, 5, 3}},
          [](auto& w, auto& x) { return x[0].bmm(w); }),
      on_weight(
          "AddmmWithItsOwnBias", {4, 3}, {{3}, {2, 4}},
          [](auto& w, auto& x) { return at::addmm(x[0], x[1], w); }),
      on_weight(
          "baddbmm", {2, 3, 4}, {{4}, {2, 5, 3}},
          [](auto& w, auto& x) { return at::baddbmm(x[0], x[1], w); }),
      on_weight(
          "einsum", {4, 3}, {{2, 5, 4}},
          [](auto& w, auto& x) {
            return at::einsum("bti,io->bto", {x[0], w});
          }),
      on_weight(
          "rms_norm", {6}, {{3, 6}},
          [](auto& w, auto& x) { return at::rms_norm(x[0], {6}, w); }),
  };
}

Results results_of(
    const Layer& layer, nn::Module& module, std::vector<at::Tensor> inputs) {
  auto output = layer.run(module, inputs);
  Results results = {output.detach()};
  output.to(at::kDouble).square().sum().backward();
  for (const auto& input : inputs) {
    results.push_back(input.grad());
  }
  for (const auto& parameter : module.parameters()) {
    results.push_back(parameter.grad());
  }
  return results;
}

class CastActivations : public ::testing::TestWithParam<Layer> {};

// The reference casts by hand: module and inputs in bf16.
TEST_P(CastActivations, EqualsCastingByHandInEveryBit) {
  const OneThread one_thread;
  const auto plain = GetParam().make();
  const auto sharded = GetParam().make();
  torch::manual_seed(kSeed);
  for (std::size_t p = 0; p < plain->parameters().size(); ++p) {
    const torch::NoGradGuard no_grad;
    plain->parameters()[p].copy_(sharded->parameters()[p]);
  }
  plain->to(at::kBFloat16);
  FakeUnitCache cache;
  cache.add_unit(sharded->parameters(), at::kBFloat16);

  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> cast;
  for (const auto& sizes : GetParam().inputs) {
    inputs.push_back(torch::randn(sizes).requires_grad_());
    cast.push_back(inputs.back().detach().clone().requires_grad_());
  }
  std::vector<at::Tensor> by_hand;
  for (const auto& input : cast) {
    by_hand.push_back(input.to(at::kBFloat16));
    by_hand.back().retain_grad();
  }
  const auto found = results_of(GetParam(), *sharded, inputs);
  const auto expected = results_of(GetParam(), *plain, by_hand);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const bool of_input = i >= 1 && i <= inputs.size();
    ASSERT_TRUE(found[i].defined()) << "result " << i;
    // The caller's inputs get gradients in their own dtype.
    EXPECT_EQ(found[i].scalar_type(), of_input ? at::kFloat : at::kBFloat16)
        << "result " << i;
    EXPECT_TRUE(at::equal(found[i].to(at::kFloat), expected[i].to(at::kFloat)))
        << "result " << i;
  }
  EXPECT_EQ(cache.pins(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    Layers,
    CastActivations,
    ::testing::ValuesIn(layers()),
    [](const auto& layer) { return std::string(layer.param.name); });

TEST(CastActivationsRules, IndicesStayIntegers) {
  const auto table = at::randn({5, 3}).requires_grad_();
  FakeUnitCache cache;
  cache.add_unit({table}, at::kBFloat16);
  const auto rows = at::embedding(table, at::tensor({4, 0, 4}, at::kLong));
  EXPECT_EQ(rows.scalar_type(), at::kBFloat16);
  rows.sum().backward();
  EXPECT_EQ(table.grad().scalar_type(), at::kBFloat16);
  const auto bags = std::get<0>(at::embedding_bag(
      table, at::tensor({4, 0, 4}, at::kLong), at::tensor({0, 2}, at::kLong)));
  EXPECT_EQ(bags.scalar_type(), at::kBFloat16);
  EXPECT_EQ(bags.size(0), 2);
}

TEST(CastActivationsRules, WithoutMixedPrecisionLibTorchRefusesAsEver) {
  const auto w = at::randn({3, 3}).requires_grad_();
  FakeUnitCache cache;
  cache.add_unit({w});
  EXPECT_THAT(
      thrown_by([&] { (void)at::randn({3, 3}, at::kDouble).mm(w); }),
      HasSubstr("same dtype"));
}

TEST(CastActivationsRules, ElementwiseOperatorsPromote) {
  const auto w = at::randn({3}).requires_grad_();
  FakeUnitCache cache;
  cache.add_unit({w}, at::kBFloat16);
  EXPECT_EQ((at::ones({3}) + w).scalar_type(), at::kFloat);
  EXPECT_EQ((at::ones({3}) * w).scalar_type(), at::kFloat);
}

TEST(CastActivationsRules, OutputsOfLayersAreCastAndOthersAreNot) {
  const auto w = at::randn({3, 3}).requires_grad_();
  const auto table = at::randn({5, 3}).requires_grad_();
  FakeUnitCache cache;
  cache.add_unit({w}, at::kBFloat16, at::kFloat);
  cache.add_unit({table}, at::kBFloat16, at::kFloat);
  const auto x = at::randn({2, 3});
  const auto y = at::linear(x, w);
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(y, y.to(at::kBFloat16).to(at::kFloat)));
  EXPECT_EQ((w * 2).scalar_type(), at::kBFloat16);
  const auto rows = at::embedding(table, at::tensor({4, 0}, at::kLong));
  EXPECT_EQ(rows.scalar_type(), at::kFloat);
  (y.sum() + rows.sum()).backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(table.grad().scalar_type(), at::kBFloat16);
}

// If they were rounded, precision beyond the output's dtype would be lost.
TEST(CastActivationsRules, GradientsOfInputsAreNotCastToTheOutputsDtype) {
  const auto value = at::randn({3, 3});
  const auto w = value.clone().requires_grad_();
  FakeUnitCache cache;
  cache.add_unit({w}, at::kFloat, at::kBFloat16);
  const auto x = at::randn({2, 3}).requires_grad_();
  const auto y = at::linear(x, w);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones({2, 3}).mm(value)));
}

// A cast of running statistics would lose the update.
TEST(CastActivationsRules, BatchNormUpdatesItsRunningStatistics) {
  const auto w = at::ones({3}).requires_grad_();
  const auto b = at::zeros({3}).requires_grad_();
  FakeUnitCache cache;
  cache.add_unit({w, b}, at::kBFloat16);
  const auto mean = at::zeros({3}, at::kBFloat16);
  const auto variance = at::ones({3}, at::kBFloat16);
  (void)at::batch_norm(
      at::full({4, 3}, 8.0), w, b, mean, variance, /*training=*/true,
      /*momentum=*/0.5, 1e-5, /*cudnn_enabled=*/false);
  EXPECT_TRUE(at::equal(mean, at::full({3}, 4.0, at::kBFloat16)));
}

TEST(CastActivationsRules, EveryNameIsAnOperatorOfThisLibTorch) {
  std::set<std::string> known;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    known.insert(name.name);
  }
  for (const auto name : activation_cast_operators()) {
    EXPECT_TRUE(known.contains("aten::" + std::string(name))) << name;
  }
}

}  // namespace
}  // namespace sherd::autograd::testing
