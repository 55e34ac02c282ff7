// SPDX-License-Identifier: Apache-2.0
//
// Models whose parameters begin on the meta device: they get their values while
// they are sharded, one after another, and train as models that had them
// before (T36, T48, T49).
#include "support/meta_module.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

#include <chrono>
#include <map>
#include <gmock/gmock.h>
#include <sherd/ddp/replicate.h>
#include <sherd/optim/adamw.h>
#include "base/check.h"
#include "base/clock.h"

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class DeferredInit : public testing::TestWithParam<int> {};

models::Gpt gpt(at::Device device) {
  return small_gpt({.tied = false, .device = device});
}
models::Llama llama(at::Device device) {
  return small_llama({.tied = false, .device = device});
}

// Losses of three steps, and then what the ranks hold.
template <typename Model>
std::vector<torch::Tensor> train(
    Model model, const World& world, const FullyShardOptions& options) {
  auto fsdp = fully_shard(*model, world, options);
  AdamW adamw(fsdp.named_parameters(), {.learning_rate = 1e-2});
  std::vector<torch::Tensor> found;
  for (int step = 0; step < 3; ++step) {
    const auto loss = token_loss(model, step, world.rank());
    loss.backward();
    found.push_back(loss.detach());
    adamw.step();
    adamw.zero_grad();
  }
  for (const auto& slice : fsdp.parameters()) {
    found.push_back(slice.detach().clone());
  }
  return found;
}

template <typename Model>
void expect_trains_alike(
    const World& world,
    Model (*make)(at::Device),
    const FullyShardOptions& options) {
  const auto expected = train(make(torch::kCPU), world, options);
  auto model = make(torch::kMeta);
  auto deferred = options;
  deferred.initialise = [&](const std::string& name, const at::Tensor& value) {
    model->reset_parameter(name, value);
  };
  const auto found = train(model, world, deferred);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    expect_close(found[i], expected[i], 0.0, "tensor " + std::to_string(i));
  }
}

TEST_P(DeferredInit, GptAndLlamaTrainToEqualBitsInEveryStrategy) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      for (const bool mixed : {false, true}) {
        FullyShardOptions options;
        options.strategy = strategy;
        if (mixed) {
          options.mixed_precision.param_dtype = torch::kBFloat16;
        }
        expect_trains_alike(world, gpt, options);
        expect_trains_alike(world, llama, options);
      }
    }
  }));
}

// Rows of parameters, ragged ones, buffers, and one parameter in two places.
struct MixtureImpl : torch::nn::Module {
  torch::nn::ModuleList layers;
  torch::Tensor scale, tied;
  MixtureImpl() {
    register_module("layers", layers);
    layers->push_back(torch::nn::Linear(8, 1));
    layers->push_back(torch::nn::BatchNorm1d(3));
    scale = register_parameter("scale", torch::ones({}));
    tied = register_parameter("tied", layer().weight);
    fill_with_integers(*this);
  }
  torch::nn::LinearImpl& layer() {
    return *layers->ptr<torch::nn::LinearImpl>(0);
  }
};
TORCH_MODULE(Mixture);

TEST_P(DeferredInit, ObjectsFlagsAndHooksStay) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto model = on_meta(Mixture());
    auto& layer = model->layer();
    layer.bias.set_requires_grad(false);
    const auto handle = layer.weight;
    int hooked = 0;
    layer.weight.register_hook([&](torch::Tensor gradient) {
      ++hooked;
      return gradient * 2;
    });
    std::map<std::string, int> asked;
    const Mixture like;
    FullyShardOptions options;
    options.initialise = [&](const std::string& name, const at::Tensor& value) {
      ++asked[name];
      EXPECT_TRUE(value.device().is_cpu()) << name;
      EXPECT_FALSE(value.requires_grad()) << name;
      values_like(like)(name, value);
    };
    auto fsdp = fully_shard(*model, world, options);
    EXPECT_EQ(asked.count("tied"), 1U);  // Its first name.
    EXPECT_EQ(asked.count("layers.0.weight"), 0U);
    for (const auto& [name, times] : asked) {
      EXPECT_EQ(times, 1) << name;
    }
    EXPECT_EQ(
        asked.size(),
        model->named_parameters().size() - 1 + model->named_buffers().size());
    EXPECT_TRUE(handle.is_same(layer.weight));
    EXPECT_FALSE(layer.bias.requires_grad());
    layer.forward(torch::ones({1, 8})).sum().backward();
    EXPECT_EQ(hooked, 1);
    for (const auto& item : fsdp.named_parameters().items) {
      if (item.name == "tied") {
        EXPECT_TRUE(item.slice.grad().eq(2).all().item<bool>());
      }
    }
    const auto scope = fsdp.summon_full_parameters({.read_only = true});
    for (const auto& item : unique_parameters(*like)) {
      expect_close(
          scope.tensor(item.name), item.tensor.detach(), 0.0, item.name);
    }
    for (const auto& item : like->named_buffers()) {
      expect_close(
          model->named_buffers()[item.key()], item.value(), 0.0, item.key());
    }
  }));
}

TEST_P(DeferredInit, WhatIsRealKeepsItsValue) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 6);
    const Chain like(2, 6);
    to_meta(model->layer(1).weight);
    std::vector<std::string> asked;
    FullyShardOptions options;
    options.initialise = [&](const std::string& name, const at::Tensor& value) {
      asked.push_back(name);
      value.fill_(3);
    };
    auto fsdp = fully_shard(*model, world, options);
    EXPECT_THAT(asked, ElementsAre("layers.1.weight"));
    const auto scope = fsdp.summon_full_parameters({.read_only = true});
    for (const auto& item : like->named_parameters()) {
      const auto value = item.value().detach();
      expect_close(
          scope.tensor(item.key()),
          item.key() == asked[0] ? torch::full_like(value, 3) : value, 0.0,
          item.key());
    }
  }));
}

// Beside the shards; one rank without mixed precision keeps them all.
TEST_P(DeferredInit, OneWholeParameterIsInMemoryAtATime) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      auto model = on_meta(Chain(4, 6));
      std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> given;
      FullyShardOptions options;
      options.strategy = strategy;
      options.mixed_precision.param_dtype = torch::kBFloat16;
      options.initialise = [&](const std::string& name, const at::Tensor& t) {
        for (const auto& before : given) {
          EXPECT_TRUE(before.expired()) << "beside " << name;
        }
        given.emplace_back(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
            t.storage().unsafeGetStorageImpl()));
        t.fill_(1);
      };
      const auto fsdp = fully_shard(*model, world, options);
      EXPECT_EQ(given.size(), 10U);
      EXPECT_TRUE(given.back().expired());
    }
  }));
}

TEST_P(DeferredInit, T48RanksThatDifferTakeTheValuesOfRank0) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto model = on_meta(Mixture());  // 8, 3 and 1 elements.
    bool asked = false;
    FullyShardOptions options;
    options.sync_module_states = true;
    options.initialise = [&](const std::string&, const at::Tensor& value) {
      asked = true;
      value.fill_(7 + world.rank());
    };
    auto fsdp = fully_shard(*model, world, options);
    EXPECT_EQ(asked, world.rank() == 0);
    for (const auto& buffer : model->buffers()) {
      EXPECT_TRUE(buffer.eq(7).all().item<bool>());
    }
    const auto scope = fsdp.summon_full_parameters({.read_only = true});
    for (const auto& item : unique_parameters(*model)) {
      EXPECT_TRUE(scope.tensor(item.name).eq(7).all().item<bool>());
    }
  }));
}

TEST_P(DeferredInit, T49OnlyRank0NeedsValues) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const Mixture like;
    auto model = Mixture();
    if (world.rank() != 0) {
      model = on_meta(Mixture());
    }
    FullyShardOptions options;
    options.sync_module_states = true;
    auto fsdp = fully_shard(*model, world, options);
    for (const auto& item : like->named_buffers()) {
      expect_close(
          model->named_buffers()[item.key()], item.value(), 0.0, item.key());
    }
    const auto scope = fsdp.summon_full_parameters({.read_only = true});
    for (const auto& item : unique_parameters(*like)) {
      expect_close(
          scope.tensor(item.name), item.tensor.detach(), 0.0, item.name);
    }
  }));
}

RankOptions broken() {
  RankOptions options;
  options.close_world = false;
  return options;
}

TEST_P(DeferredInit, T36WithoutItEveryRankNamesWhatIsLeftOnTheMetaDevice) {
  const int last = GetParam() - 1;
  for (const bool buffer : {false, true}) {
    expect_all_ok(run_ranks(GetParam(), [&](World world) {
      Mixture model;
      if (world.rank() == last) {
        to_meta(buffer ? model->buffers()[0] : model->layer().bias);
      }
      EXPECT_THAT(
          error_of([&] { (void)fully_shard(*model, world); }),
          AllOf(
              HasSubstr(
                  buffer ? "buffer layers.1.running_mean is on the meta device"
                         : "parameter layers.0.bias is on the meta device"),
              HasSubstr(
                  world.rank() == last ? "expected options.initialise"
                                       : "on rank " + std::to_string(last))));
      // Nothing has changed.
      EXPECT_TRUE(model->scale.is_contiguous());
      EXPECT_EQ(model->scale.item<float>(), Mixture()->scale.item<float>());
    }));
  }
}

TEST_P(DeferredInit, ASparseBufferIsRefusedByName) {
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    for (const bool sync : {false, true}) {
      Mixture model;
      model->register_buffer("graph", torch::eye(3).to_sparse());
      FullyShardOptions options;
      options.sync_module_states = sync;
      if (world.size() == 1) {
        (void)fully_shard(*model, world, options);
        continue;
      }
      EXPECT_THAT(
          error_of([&] { (void)fully_shard(*model, world, options); }),
          HasSubstr("buffer graph is sparse"));
      EXPECT_THAT(
          error_of([&] { (void)replicate(*model, world); }),
          HasSubstr("graph is on cpu, sparse"));
    }
  }));
}

TEST_P(DeferredInit, AnExceptionInInitialiseIsAnErrorOnEveryRank) {
  const int last = GetParam() - 1;
  for (const bool sync : {false, true}) {
    const int thrower = sync ? 0 : last;
    expect_all_ok(run_ranks(
        GetParam(),
        [&](World world) {
          auto model = on_meta(Mixture());
          FullyShardOptions options;
          options.sync_module_states = sync;
          options.initialise = [&](const std::string& name, const at::Tensor&) {
            if (world.rank() == thrower && name == "layers.0.bias") {
              throw std::runtime_error("no such file");
            }
          };
          const auto began = SteadyClock().now();
          const auto error =
              error_of([&] { (void)fully_shard(*model, world, options); });
          EXPECT_LT(SteadyClock().now() - began, 5s);
          EXPECT_THAT(
              error,
              HasSubstr("parameter layers.0.bias has no value: "
                        "options.initialise threw"));
          EXPECT_THAT(
              error,
              HasSubstr(
                  world.rank() == thrower
                      ? "no such file"
                      : "on rank " + std::to_string(thrower)));
        },
        broken()));
  }
}

TEST_P(DeferredInit, DifferentValuesFromInitialiseAreNamedOnEveryRank) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const int last = world.size() - 1;
    const Mixture like;
    for (const std::string differs :
         {"layers.0.bias", "layers.1.running_var"}) {
      auto model = on_meta(Mixture());
      FullyShardOptions options;
      options.initialise = [&](const std::string& name, const at::Tensor& to) {
        values_like(like)(name, to);
        if (name == differs && world.rank() == last && last > 0) {
          to.add_(1);
        }
      };
      const auto error =
          error_of([&] { fully_shard(*model, world, options).close(); });
      if (last == 0) {
        EXPECT_EQ(error, "no error");
      } else {
        EXPECT_THAT(
            error,
            AllOf(
                HasSubstr(differs + ": rank"),
                HasSubstr("rank " + std::to_string(last) + " another (1 of ")));
      }
    }
    // What is on the meta device on one rank alone is compared, too.
    auto model = Mixture();
    if (world.rank() == last) {
      to_meta(model->scale);
    }
    FullyShardOptions options;
    options.initialise = values_like(like);
    EXPECT_EQ(
        error_of([&] { fully_shard(*model, world, options).close(); }),
        "no error");
  }));
}

TEST_P(DeferredInit, T49DifferentBuffersAreNamedOnEveryRank) {
  if (GetParam() == 1) {
    return;
  }
  RankOptions options;
  options.close_world = false;
  expect_all_ok(run_ranks(
      GetParam(),
      [](World world) {
        Chain model(2, 3);
        for (int i = 0; i <= world.rank(); ++i) {
          model->register_buffer(str("b", i), torch::zeros({2}));
        }
        FullyShardOptions shard;
        shard.sync_module_states = true;
        EXPECT_THAT(
            error_of([&] { (void)fully_shard(*model, world, shard); }),
            AllOf(
                HasSubstr("rank 0 has 1 of 8 bytes"),
                HasSubstr("rank 1 has 2 of 16 bytes")));
      },
      options));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    DeferredInit,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
