// SPDX-License-Identifier: Apache-2.0
//
// Mixed precision of replicas (C17): equal in bits to fully_shard() with kNoShard, which keeps a copy
// of the model in bf16, where the two round at the same places.
#include "ddp/replica_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

#include <gmock/gmock.h>
#include <sherd/autograd/checkpoint.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/optim/grad_scaler.h>

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

constexpr auto kReplicaBf16 = torch::kBFloat16;

struct CastNetImpl : torch::nn::Module {
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::BatchNorm1d batch_norm{nullptr};
  CastNetImpl() {
    torch::manual_seed(8);
    up = register_module("up", torch::nn::Linear(6, 300));
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({300})));
    batch_norm = register_module("batch_norm", torch::nn::BatchNorm1d(300));
    down = register_module("down", torch::nn::Linear(300, 60));
    up->bias.requires_grad_(false);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return down(batch_norm(norm(torch::tanh(up(x)))));
  }
};
TORCH_MODULE(CastNet);

torch::Tensor cast_loss(CastNet& model, int batch, int rank) {
  torch::manual_seed(100 * batch + rank);
  return model->forward(torch::randn({4, 6})).to(torch::kFloat).square().mean();
}

struct PrecisionCase {
  ExchangeKind exchange = ExchangeKind::kAuto;
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  CommHookPtr hook = nullptr;
};

// Micro-batches but the last of a step run under no_sync().
void expect_as_no_shard(
    const World& world, const PrecisionCase& wanted, int micro_batches = 1) {
  CastNet replica;
  CastNet reference;
  auto ddp = replicate(
      *replica, world,
      {.bucket_bytes = 2000,
       .exchange = wanted.exchange,
       .param_dtype = kReplicaBf16,
       .reduce_dtype = wanted.reduce_dtype,
       .hook = wanted.hook});
  auto fsdp = fully_shard(
      *reference, world,
      {.strategy = Strategy::kNoShard,
       .exchange = wanted.exchange,
       .mixed_precision =
           {.param_dtype = kReplicaBf16, .reduce_dtype = wanted.reduce_dtype},
       .hook = wanted.hook});
  for (int step = 0; step < (micro_batches == 1 ? 3 : 1); ++step) {
    for (int micro = 0; micro < micro_batches; ++micro) {
      const int batch = micro_batches * step + micro;
      std::optional<LocalGradientsScope> local;
      std::optional<NoSyncScope> none;
      if (micro + 1 < micro_batches) {
        local.emplace(ddp.no_sync());
        none.emplace(fsdp.no_sync());
      }
      auto loss = cast_loss(replica, batch, world.rank());
      auto expected = cast_loss(reference, batch, world.rank());
      ASSERT_TRUE(torch::equal(loss, expected));
      loss.backward();
      expected.backward();
    }
    const auto parameters = replica->named_parameters();
    const torch::NoGradGuard no_grad;
    for (const auto& item : fsdp.named_parameters().items) {
      auto parameter = parameters[item.name];
      ASSERT_EQ(parameter.grad().defined(), item.slice.grad().defined());
      if (!item.slice.grad().defined()) {
        continue;
      }
      EXPECT_EQ(parameter.grad().scalar_type(), torch::kFloat);
      const auto found = parameter.grad().flatten();
      // What micro-batches have added up is rounded at other places.
      ASSERT_TRUE(
          micro_batches == 1
              ? torch::equal(found, item.slice.grad())
              : torch::allclose(found, item.slice.grad(), 1e-2, 1e-3))
          << item.name;
      parameter.sub_(parameter.grad(), 0.25);
      item.slice.sub_(item.slice.grad(), 0.25);
      parameter.mutable_grad().reset();
      item.slice.mutable_grad().reset();
    }
    fsdp.publish();
  }
}

class ReplicatePrecision : public ::testing::TestWithParam<int> {};

TEST_P(ReplicatePrecision, C17TrainsToTheBitsOfNoShard) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto exchange :
         {ExchangeKind::kAuto, ExchangeKind::kCollective}) {
      expect_as_no_shard(world, {.exchange = exchange});
      expect_as_no_shard(
          world, {.exchange = exchange, .reduce_dtype = torch::kFloat});
    }
    expect_as_no_shard(world, {}, 2);
    expect_as_no_shard(world, {.reduce_dtype = torch::kFloat}, 2);
    expect_as_no_shard(world, {.hook = all_reduce_mean()});
  }));
}

TEST_P(ReplicatePrecision, C17SendsHalfOfTheBytes) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    std::vector<std::int64_t> bytes;
    for (const auto reduce_dtype : {kReplicaBf16, torch::kFloat}) {
      CastNet model;
      auto ddp = replicate(
          *model, world,
          {.param_dtype = kReplicaBf16, .reduce_dtype = reduce_dtype});
      cast_loss(model, 0, world.rank()).backward();
      bytes.push_back(ddp.report().gradient_bytes);
    }
    // Those of the batch norm stay in fp32; a rank alone sends nothing.
    EXPECT_GE(bytes[1], bytes[0] * 19 / 10);
    EXPECT_LE(bytes[1], bytes[0] * 2 + 1024);
  }));
}

struct RecurrentImpl : torch::nn::Module {
  torch::nn::Embedding rows{nullptr};
  torch::nn::GRU gru{nullptr};
  explicit RecurrentImpl(bool sparse) {
    torch::manual_seed(9);
    rows = register_module(
        "rows",
        torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 4).sparse(sparse)));
    gru = register_module("gru", torch::nn::GRU(4, 5));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    return std::get<0>(gru(rows(tokens)));
  }
};
TORCH_MODULE(Recurrent);

TEST_P(ReplicatePrecision, C17EmbeddingsAndRecurrentLayersAreCast) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto tokens = torch::tensor({{1, 2}, {3, 1}});
    std::vector<torch::Tensor> gradients;
    for (const bool sparse : {false, true}) {
      Recurrent model(sparse);
      Recurrent by_hand(sparse);
      by_hand->to(kReplicaBf16);
      auto ddp = replicate(*model, world, {.param_dtype = kReplicaBf16});
      const auto y = model->forward(tokens);
      EXPECT_EQ(y.scalar_type(), kReplicaBf16);
      EXPECT_TRUE(torch::equal(y, by_hand->forward(tokens)));
      {
        const torch::NoGradGuard no_grad;
        EXPECT_TRUE(torch::equal(y, model->forward(tokens)));
      }
      y.to(torch::kFloat).sum().backward();
      EXPECT_EQ(model->rows->weight.scalar_type(), torch::kFloat);
      const auto& gradient = model->rows->weight.grad();
      EXPECT_EQ(gradient.scalar_type(), torch::kFloat);
      EXPECT_EQ(gradient.is_sparse(), sparse);
      gradients.push_back(sparse ? gradient.to_dense() : gradient.clone());
    }
    // Dense ones are sent in bf16.
    EXPECT_TRUE(torch::allclose(gradients[0], gradients[1], 1e-2, 1e-4));
  }));
}

TEST_P(ReplicatePrecision, C17GptTrainsAsWithNoShard) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto replica = small_gpt({.tied = true});
    auto reference = small_gpt({.tied = true});
    auto ddp = replicate(*replica, world, {.param_dtype = kReplicaBf16});
    auto fsdp = fully_shard(
        *reference, world,
        {.strategy = Strategy::kNoShard,
         .mixed_precision = {.param_dtype = kReplicaBf16}});
    auto loss = token_loss(replica, 0, world.rank());
    auto expected = token_loss(reference, 0, world.rank());
    EXPECT_TRUE(torch::equal(loss, expected));
    loss.backward();
    expected.backward();
    const auto parameters = replica->named_parameters();
    for (const auto& item : fsdp.named_parameters().items) {
      // What is used twice adds up in fp32, and in bf16 in the reference.
      EXPECT_TRUE(torch::allclose(
          parameters[item.name].grad().flatten(), item.slice.grad(), 2e-2,
          1e-3))
          << item.name;
    }
  }));
}

TEST_P(ReplicatePrecision, C17RecomputedForwardsAreCastAlike) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    std::vector<torch::Tensor> gradients;
    for (const bool recompute : {false, true}) {
      CastNet model;
      model->eval();
      auto ddp = replicate(*model, world, {.param_dtype = kReplicaBf16});
      torch::manual_seed(world.rank());
      const auto x = torch::randn({4, 6}).requires_grad_();
      const auto forward = [&](const torch::Tensor& input) {
        return model->forward(input);
      };
      const auto y = recompute ? checkpoint(forward, x) : forward(x);
      y.to(torch::kFloat).square().mean().backward();
      gradients.push_back(model->down->weight.grad().clone());
    }
    EXPECT_TRUE(torch::equal(gradients[0], gradients[1]));
  }));
}

TEST_P(ReplicatePrecision, C17AScalerGoesWithFp16) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    CastNet model;
    auto ddp = replicate(*model, world, {.param_dtype = torch::kHalf});
    EXPECT_EQ(
        error_of([&] { GradScaler(ddp.named_parameters()); }), "no error");
    ddp.close();
    // Plain again: nothing is cast.
    EXPECT_EQ(model->forward(torch::ones({2, 6})).scalar_type(), torch::kFloat);
  }));
}

TEST_P(ReplicatePrecision, C17OptionsWithoutSenseAreRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    CastNet model;
    const auto refusal = [&](const ReplicateOptions& options) {
      return error_of([&] { (void)replicate(*model, world, options); });
    };
    EXPECT_THAT(
        refusal({.param_dtype = torch::kLong}),
        HasSubstr("options.param_dtype is Long; expected Float"));
    EXPECT_THAT(
        refusal({.reduce_dtype = torch::kDouble}),
        HasSubstr("options.reduce_dtype is Double"));
    if (world.size() > 1) {
      EXPECT_THAT(
          refusal(
              {.param_dtype = world.rank() == 0 ? kReplicaBf16 : torch::kHalf,
               .reduce_dtype = torch::kFloat}),
          HasSubstr("parameters used as"));
    }
    model->to(torch::kDouble);
    EXPECT_THAT(
        refusal({.param_dtype = kReplicaBf16}),
        HasSubstr("parameter up.weight is of type Double"));
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReplicatePrecision,
    ::testing::Values(1, 2, 3),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
