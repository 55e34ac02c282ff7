// SPDX-License-Identifier: Apache-2.0
//
// Usual architectures, tied parameters and unusual parameters.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

namespace sherd::test {
namespace {

class ModelFamilies : public testing::TestWithParam<int> {};

torch::Tensor random_rows(
    int batch, int rank, const std::vector<std::int64_t>& sizes) {
  torch::manual_seed(1000 * batch + rank);
  return torch::randn(sizes);
}

// No division by tiny numbers, as in Adam: a rounding stays a rounding.
MakeStep sgd() {
  return steps_of<torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9));
}

TEST_P(ModelFamilies, GptWithAHeadTiedToTheEmbedding) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool tied : {true, false}) {
      RankParity options;
      options.micro_batches = 2;
      // torch's SGD steps of slices and of whole tensors round alike, but
      // sums of micro-batches do not where 1/ranks is no fp32 number.
      options.tolerance = 1e-6;
      options.step = sgd();
      expect_rank_parity<models::Gpt>(
          world, [&] { return small_gpt({.tied = tied}); },
          token_loss<models::Gpt>, options);
    }
  }));
}

TEST_P(ModelFamilies, GptIsEqualInBitsForOneBatch) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.steps = 2;
    options.step = steps_of<torch::optim::SGD>(torch::optim::SGDOptions(0.5));
    expect_rank_parity<models::Gpt>(
        world, [] { return small_gpt({.tied = true}); },
        token_loss<models::Gpt>, options);
  }));
}

TEST_P(ModelFamilies, GptWithAdamW) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.tolerance = 1e-6;
    options.step =
        steps_of<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-3));
    expect_rank_parity<models::Gpt>(
        world, [] { return small_gpt({.tied = true}); },
        token_loss<models::Gpt>, options);
  }));
}

TEST_P(ModelFamilies, LlamaWithGroupedQueries) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool tied : {true, false}) {
      RankParity options;
      options.micro_batches = 2;
      options.tolerance = 1e-6;  // As for GPT.
      options.step = sgd();
      const auto report = expect_rank_parity<models::Llama>(
          world, [&] { return small_llama({.tied = tied}); },
          token_loss<models::Llama>, options);
      EXPECT_EQ(report.units, 4);  // The default policy: root and 3 layers.
    }
  }));
}

TEST_P(ModelFamilies, LlamaIsEqualInBitsForOneBatch) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.steps = 2;
    options.step = steps_of<torch::optim::SGD>(torch::optim::SGDOptions(0.5));
    expect_rank_parity<models::Llama>(
        world, [] { return small_llama({.tied = false}); },
        token_loss<models::Llama>, options);
  }));
}

struct RecurrentImpl : torch::nn::Module {
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
  RecurrentImpl() {
    torch::manual_seed(2);
    lstm = register_module(
        "lstm",
        torch::nn::LSTM(
            torch::nn::LSTMOptions(5, 6).num_layers(2).bidirectional(true)));
    head = register_module("head", torch::nn::Linear(12, 1));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(std::get<0>(lstm(x)));
  }
};
TORCH_MODULE(Recurrent);

TEST_P(ModelFamilies, LstmOfTwoLayersInTwoDirections) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.tolerance = 1e-6;
    options.step = sgd();
    options.shard.units = units::by_name("*");
    expect_rank_parity<Recurrent>(
        world, [] { return Recurrent(); },
        [](Recurrent& model, int batch, int rank) {
          return model->forward(random_rows(batch, rank, {4, 2, 5}))
              .square()
              .mean();
        },
        options);
  }));
}

struct ConvolutionImpl : torch::nn::Module {
  torch::nn::Sequential layers;
  torch::nn::Linear head{nullptr};
  ConvolutionImpl() {
    torch::manual_seed(4);
    layers = torch::nn::Sequential(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 5, 3).padding(1)),
        torch::nn::BatchNorm2d(5), torch::nn::ReLU(),
        torch::nn::Conv2d(torch::nn::Conv2dOptions(5, 4, 3).stride(2)),
        torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, 4)));
    register_module("layers", layers);
    head = register_module("head", torch::nn::Linear(4 * 3 * 3, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(layers->forward(x).flatten(1));
  }
};
TORCH_MODULE(Convolution);

TEST_P(ModelFamilies, ConvolutionsAndBatchNorm) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.tolerance = 1e-5;
    options.step = sgd();
    expect_rank_parity<Convolution>(
        world, [] { return Convolution(); },
        [](Convolution& model, int batch, int rank) {
          return model->forward(random_rows(batch, rank, {3, 3, 8, 8}))
              .square()
              .mean();
        },
        options);
  }));
}

struct EncoderImpl : torch::nn::Module {
  torch::nn::EmbeddingBag bag{nullptr};
  torch::nn::TransformerEncoder encoder{nullptr};
  EncoderImpl() {
    torch::manual_seed(6);
    bag = register_module(
        "bag",
        torch::nn::EmbeddingBag(
            torch::nn::EmbeddingBagOptions(9, 8).sparse(true).mode(
                torch::kSum)));
    encoder = register_module(
        "encoder",
        torch::nn::TransformerEncoder(
            torch::nn::TransformerEncoderLayer(
                torch::nn::TransformerEncoderLayerOptions(8, 2)
                    .dim_feedforward(12)
                    .dropout(0.0)),
            2));
  }
  torch::Tensor forward(const torch::Tensor& ids) {
    return encoder(bag(ids).unsqueeze(1));
  }
};
TORCH_MODULE(Encoder);

TEST_P(ModelFamilies, TransformerEncoderOverASparseEmbeddingBag) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.tolerance = 1e-5;
    options.shard.units = units::by_size(60);
    // LibTorch's SGD takes no sparse gradients; the reference has them.
    options.step = [](const Leaves& leaves) {
      return [leaves] {
        const torch::NoGradGuard no_grad;
        for (auto leaf : leaves) {
          if (leaf.grad().defined()) {
            leaf.sub_(0.1 * leaf.grad());
            leaf.mutable_grad().reset();
          }
        }
      };
    };
    options.steps = 2;
    Encoder dense_once;  // Sparse gradients have no reshape(): compare ends.
    Encoder reference;
    auto fsdp = fully_shard(*dense_once, world, options.shard);
    const auto leaves = unique_parameters(*reference);
    const Pass<Encoder> pass = [](Encoder& model, int batch, int rank) {
      torch::manual_seed(1000 * batch + rank);
      return model->forward(torch::randint(0, 9, {3, 4}, torch::kLong))
          .square()
          .mean();
    };
    const auto step_reference = options.step(tensors_of(leaves));
    const auto step_shards = options.step(fsdp.parameters());
    for (int batch = 0; batch < options.steps; ++batch) {
      reference_backward<Encoder>(reference, leaves, pass, batch, world);
      pass(dense_once, batch, world.rank()).backward();
      step_reference();
      step_shards();
      fsdp.publish();
    }
    expect_parameters(leaves, *dense_once, fsdp, options.tolerance);
  }));
}

// One tensor registered in three places, of which two are other units.
struct TiedImpl : torch::nn::Module {
  struct ShareImpl : torch::nn::Module {
    torch::Tensor weight, bias;
    ShareImpl(torch::Tensor shared, std::int64_t outputs) {
      weight = register_parameter("weight", std::move(shared));
      bias = register_parameter("bias", torch::zeros({outputs}));
    }
  };
  torch::Tensor shared;
  std::shared_ptr<ShareImpl> encode, decode;
  torch::nn::Linear middle{nullptr};
  TiedImpl() {
    shared = torch::zeros({5, 7}).requires_grad_();
    encode = register_module("encode", std::make_shared<ShareImpl>(shared, 5));
    middle = register_module("middle", torch::nn::Linear(5, 5));
    decode = register_module("decode", std::make_shared<ShareImpl>(shared, 7));
    fill_with_integers(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = torch::nn::functional::linear(x, encode->weight, encode->bias);
    y = middle(y.clamp(-2, 2)).clamp(-2, 2);
    return torch::nn::functional::linear(y, decode->weight.t(), decode->bias);
  }
};
TORCH_MODULE(Tied);

TEST_P(ModelFamilies, T09ATiedParameterIsUsedFromAnotherUnit) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      RankParity options;
      options.shard.units = units::by_name("*");
      options.shard.strategy = strategy;
      const auto report = expect_rank_parity<Tied>(
          world, [] { return Tied(); },
          [](Tied& model, int batch, int rank) {
            return model->forward(integer_rows(batch, rank, 7)).sum();
          },
          options);
      EXPECT_EQ(report.units, 3);
    }
  }));
}

TEST_P(ModelFamilies, T09TheTieSurvivesSharding) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Tied model;
    FullyShardOptions options;
    options.units = units::by_name("*");
    auto fsdp = fully_shard(*model, world, options);
    EXPECT_TRUE(model->encode->weight.is_same(model->decode->weight));
    int named = 0;
    for (const auto& item : fsdp.named_parameters().items) {
      EXPECT_NE(item.name, "decode.weight");  // Its first name counts.
      named += item.name == "encode.weight" ? 1 : 0;
    }
    EXPECT_LE(named, 1);
  }));
}

// Everything a module may own: scalars, two dtypes, frozen integers, strides
// that are not contiguous, nothing at all, in every container.
struct OdditiesImpl : torch::nn::Module {
  torch::Tensor scale, steps, empty, table;
  torch::nn::ParameterList list;
  torch::nn::ParameterDict dict;
  torch::nn::ModuleDict modules;
  OdditiesImpl() {
    scale = register_parameter("scale", torch::full({}, 2.0));
    steps = register_parameter(
        "steps", torch::tensor({3, 4, 5}, torch::kLong), /*grad=*/false);
    empty = register_parameter("empty", torch::zeros({0, 4}));
    table = register_parameter(
        "table", torch::arange(12, torch::kFloat).reshape({3, 4}).t());
    register_module("list", list);
    list->append(torch::full({3}, 2.0, torch::kDouble));
    register_module("dict", dict);
    dict->insert(
        "rotation",
        torch::ones({2, 2}, torch::kComplexFloat).set_requires_grad(false));
    dict->get("rotation").set_requires_grad(false);
    register_module("modules", modules);
    modules->update({{"out", torch::nn::Linear(3, 2).ptr()}});
    fill_with_integers(*modules);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = x.matmul(table) * scale + steps + empty.sum();
    y = (y.to(torch::kDouble) * list[0]).to(torch::kFloat);
    y = modules["out"]->as<torch::nn::Linear>()->forward(y);
    return y + dict->get("rotation").abs().sum();
  }
};
TORCH_MODULE(Oddities);

TEST_P(ModelFamilies, T36ScalarsMixedDtypesStridesAndContainersAreFine) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      RankParity options;
      options.shard.strategy = strategy;
      expect_rank_parity<Oddities>(
          world, [] { return Oddities(); },
          [](Oddities& model, int batch, int rank) {
            return model->forward(integer_rows(batch, rank, 4)).sum();
          },
          options);
    }
  }));
}

TEST_P(ModelFamilies, T36AStridedParameterIsContiguousAfterwards) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Oddities model;
    ASSERT_FALSE(model->table.is_contiguous());
    auto fsdp = fully_shard(*model, world);
    EXPECT_TRUE(model->table.is_contiguous());
    EXPECT_EQ(model->table.sizes(), (std::vector<std::int64_t>{4, 3}));
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ModelFamilies,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
