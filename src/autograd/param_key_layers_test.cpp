// SPDX-License-Identifier: Apache-2.0
//
// Sharding changes no bit of what any layer computes. Every case runs with all its parameters in
// one unit, with a unit per child and with a unit per parameter.
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

namespace nn = torch::nn;

struct LayerCase {
  const char* name;
  std::function<Trainable()> make;
};
void PrintTo(const LayerCase& layer, std::ostream* out) { *out << layer.name; }

at::Tensor first(const at::Tensor& t) { return t; }
template <typename... T>
at::Tensor first(const std::tuple<at::Tensor, T...>& t) {
  return std::get<0>(t);
}

// A loss that needs every element and is not linear in it.
at::Tensor loss_of(const at::Tensor& output) {
  return (output * output.cos()).mean();
}

// The layer on one input, which itself requires a gradient if it can have one.
template <typename Layer>
Trainable on(Layer layer, at::Tensor input) {
  if (input.is_floating_point()) {
    input.requires_grad_();
  }
  return {layer.ptr(), [layer, input]() mutable {
            return loss_of(first(layer(input)));
          }};
}

at::Tensor ids(at::IntArrayRef sizes, std::int64_t below) {
  return at::randint(below, sizes, at::kLong);
}

Trainable transformer_encoder() {
  nn::TransformerEncoder encoder(nn::TransformerEncoderOptions(
      nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(24).dropout(
          0.3),
      2));
  return on(encoder, at::randn({5, 2, 16}));
}

Trainable attention() {
  nn::MultiheadAttention layer(nn::MultiheadAttentionOptions(16, 4));
  auto q = at::randn({5, 2, 16});
  auto k = at::randn({6, 2, 16});
  return {layer.ptr(), [layer, q, k]() mutable {
            return loss_of(std::get<0>(layer(q, k, k)));
          }};
}

Trainable attention_with_other_widths() {
  nn::MultiheadAttention layer(
      nn::MultiheadAttentionOptions(16, 4).kdim(8).vdim(8));
  auto q = at::randn({5, 2, 16});
  auto k = at::randn({6, 2, 8});
  return {layer.ptr(), [layer, q, k]() mutable {
            return loss_of(std::get<0>(layer(q, k, k)));
          }};
}

template <typename Mode>
Trainable embedding_bag(Mode mode) {
  nn::EmbeddingBag bag(nn::EmbeddingBagOptions(20, 6).mode(mode));
  return on(bag, ids({4, 5}, 20));
}

Trainable bilinear() {
  nn::Bilinear layer(nn::BilinearOptions(5, 6, 7));
  auto a = at::randn({3, 5});
  auto b = at::randn({3, 6});
  return {
      layer.ptr(), [layer, a, b]() mutable { return loss_of(layer(a, b)); }};
}

// Embedding and output projection are one tensor, registered twice.
struct TiedImpl : nn::Module {
  nn::Embedding embed{register_module("embed", nn::Embedding(11, 8))};
  nn::LSTM lstm{register_module("lstm", nn::LSTM(nn::LSTMOptions(8, 8)))};
  at::Tensor head{register_parameter("head", embed->weight)};
  at::Tensor forward(const at::Tensor& tokens) {
    return at::linear(std::get<0>(lstm(embed(tokens))), head);
  }
};
TORCH_MODULE(Tied);

// Operators that take lists of parameters from several units.
struct ListsImpl : nn::Module {
  std::vector<at::Tensor> w;
  ListsImpl() {
    for (const char* name : {"a", "b", "c"}) {
      w.push_back(register_parameter(name, at::randn({4, 4})));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto row = at::tensor({0, 2, 1, 3});
    auto y = x.mm(at::cat({w[0], w[1]}, 1)).mm(at::cat({w[2], w[0]}, 0));
    y = y + at::stack({w[0], w[1], w[2]}).sum(0).narrow(0, 0, y.size(0));
    y = y + at::einsum("ij,jk,kl->il", {x, w[1], w[2]});
    y = y + w[1].index({row}).mm(w[2].index_select(0, row));
    const auto norms = at::_foreach_norm(w);
    return y * at::stack(norms).sum();
  }
};
TORCH_MODULE(Lists);

struct ScalarImpl : nn::Module {
  at::Tensor scale{register_parameter("scale", at::scalar_tensor(1.5))};
  at::Tensor none{register_parameter("none", at::zeros({0, 3}))};
  at::Tensor forward(const at::Tensor& x) {
    return at::cat({x * scale, none * 2}, 0);
  }
};
TORCH_MODULE(Scalar);

Trainable convolutions() {
  nn::Sequential layers(
      nn::Conv2d(nn::Conv2dOptions(3, 6, 3).stride(2)), nn::BatchNorm2d(6),
      nn::PReLU(nn::PReLUOptions().num_parameters(6)),
      nn::Conv2d(nn::Conv2dOptions(6, 6, 3).groups(2).padding(1)),
      nn::GroupNorm(nn::GroupNormOptions(3, 6)),
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(6, 4, 3)));
  const auto x = at::randn({2, 3, 9, 9}).requires_grad_();
  return {layers.ptr(), [layers, x]() mutable {
            return loss_of(layers->forward(x));
          }};
}

const std::vector<LayerCase>& layer_cases() {
  static const std::vector<LayerCase> cases = {
      {"Gru",
       [] {
         return on(
             nn::GRU(nn::GRUOptions(6, 8).num_layers(2).bidirectional(true)),
             at::randn({5, 3, 6}));
       }},
      {"Rnn",
       [] { return on(nn::RNN(nn::RNNOptions(6, 8)), at::randn({5, 3, 6})); }},
      {"Lstm",
       [] {
         return on(
             nn::LSTM(nn::LSTMOptions(6, 8).num_layers(2).batch_first(true)),
             at::randn({3, 5, 6}));
       }},
      {"LstmWithProjection",
       [] {
         return on(
             nn::LSTM(nn::LSTMOptions(6, 8).num_layers(2).proj_size(4)),
             at::randn({5, 3, 6}));
       }},
      {"MultiheadAttention", &attention},
      {"MultiheadAttentionWithOtherWidths", &attention_with_other_widths},
      {"TransformerEncoderWithDropout", &transformer_encoder},
      {"EmbeddingBagSum", [] { return embedding_bag(torch::kSum); }},
      {"EmbeddingBagMax", [] { return embedding_bag(torch::kMax); }},
      {"EmbeddingBagMean", [] { return embedding_bag(torch::kMean); }},
      {"Embedding", [] { return on(nn::Embedding(20, 6), ids({4, 5}, 20)); }},
      {"EmbeddingSparse",
       [] {
         return on(
             nn::Embedding(nn::EmbeddingOptions(20, 6).sparse(true)),
             ids({4, 5}, 20));
       }},
      {"ConvolutionsAndNorms", &convolutions},
      {"Conv1d", [] { return on(nn::Conv1d(3, 4, 3), at::randn({2, 3, 9})); }},
      {"Bilinear", &bilinear},
      {"Linear", [] { return on(nn::Linear(6, 5), at::randn({4, 3, 6})); }},
      {"LayerNorm",
       [] {
         return on(nn::LayerNorm(nn::LayerNormOptions({6})), at::randn({4, 6}));
       }},
      {"TiedWeights", [] { return on(Tied(), ids({5, 3}, 11)); }},
      {"ListsOfParameters", [] { return on(Lists(), at::randn({4, 4})); }},
      {"ScalarAndEmptyParameters",
       [] { return on(Scalar(), at::randn({2, 3})); }},
  };
  return cases;
}

class ShardedLayer : public ::testing::TestWithParam<LayerCase> {};

TEST_P(ShardedLayer, GivesTheSameBits) {
  expect_unchanged_when_sharded(GetParam().make);
}

INSTANTIATE_TEST_SUITE_P(
    Every,
    ShardedLayer,
    ::testing::ValuesIn(layer_cases()),
    [](const auto& test) { return std::string(test.param.name); });

TEST(ShardedLayerNorm, WorksWithoutBias) {
  expect_unchanged_when_sharded([] {
    auto layer = std::make_shared<nn::Module>();
    auto w = layer->register_parameter("weight", at::randn({6}));
    auto x = at::randn({4, 6});
    return Trainable{
        layer, [w, x] { return loss_of(at::layer_norm(x, {6}, w, {})); }};
  });
}

TEST(ShardedBatchNorm, UpdatesItsStatisticsAlike) {
  torch::manual_seed(kSeed);
  nn::BatchNorm1d plain(4);
  auto sharded = std::dynamic_pointer_cast<nn::BatchNorm1dImpl>(plain->clone());
  FakeUnitCache cache;
  adopt_module(*sharded, cache, UnitGrouping::kOneUnit);
  const auto x = at::randn({5, 4});

  const auto expected = plain(x);
  const auto got = sharded->forward(x);

  EXPECT_TRUE(bit_equal(got, expected));
  EXPECT_TRUE(bit_equal(sharded->running_var, plain->running_var));
}

// One layer of each family with a cache that keeps exactly one unit.
TEST(ShardedModel, NeverHasMoreThanItsUnitsWhole) {
  torch::manual_seed(kSeed);
  nn::Sequential model(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4));
  FakeUnitCache cache(1);
  adopt_module(*model, cache, UnitGrouping::kPerChild);

  loss_of(model->forward(at::randn({2, 4}))).backward();

  EXPECT_EQ(cache.whole(0) + cache.whole(1) + cache.whole(2), 1);
  // Forward, then backward in the other direction. The last unit of forward is the first of
  // backward and was kept. The first layer's weight is not needed in backward.
  EXPECT_EQ(cache.fills(0), 1);
  EXPECT_EQ(cache.fills(1), 2);
  EXPECT_EQ(cache.fills(2), 1);
}

}  // namespace
}  // namespace sherd::autograd::testing
