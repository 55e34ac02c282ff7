// SPDX-License-Identifier: Apache-2.0
//
// Replicas train as one process with the whole batch does. Ids are those of
// docs/design/tests.md.
#include "ddp/replica_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include "autograd/managed_storage.h"
#include "world/world_impl.h"

namespace sherd::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Replicate : public ::testing::TestWithParam<int> {};

// Buckets of one or two parameters each.
ReplicateOptions small_buckets() {
  ReplicateOptions options;
  options.bucket_bytes = 300;
  options.first_bucket_bytes = 8;
  return options;
}

TEST_P(Replicate, T50IntegersAreEqualInBits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool view : {true, false}) {
      for (const auto& buckets : {ReplicateOptions(), small_buckets()}) {
        ReplicaParity options;
        options.replicate = buckets;
        options.replicate.gradient_as_bucket_view = view;
        const auto report = expect_replica_parity<IntegerMlp>(
            world, [] { return IntegerMlp(); }, integer_loss, options);
        EXPECT_EQ(report.world_size, world.size());
        EXPECT_EQ(report.backwards, world.size() == 1 ? 0 : 3);
        EXPECT_THAT(report.unused, IsEmpty());
      }
    }
  }));
}

// A gradient that is set to zero instead of none is written in place.
TEST_P(Replicate, T50GradientsMayStayAndBeZeroed) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    ReplicaParity options;
    options.replicate = small_buckets();
    options.step = [](const Leaves& leaves) {
      auto sgd = std::make_shared<torch::optim::SGD>(
          leaves, torch::optim::SGDOptions(0.5));
      return [sgd] {
        sgd->step();
        sgd->zero_grad(/*set_to_none=*/false);
      };
    };
    expect_replica_parity<IntegerMlp>(
        world, [] { return IntegerMlp(); }, integer_loss, options);
  }));
}

TEST_P(Replicate, T50TrainsWithAnyOptimizer) {
  namespace optim = torch::optim;
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    ReplicaParity options;
    options.replicate = small_buckets();
    for (const auto& step :
         {steps_of<optim::Adagrad>(optim::AdagradOptions(0.1)),
          steps_of<optim::Adam>(optim::AdamOptions(0.1)),
          steps_of<optim::RMSprop>(optim::RMSpropOptions(0.1).momentum(0.9)),
          steps_of<optim::SGD>(optim::SGDOptions(0.5).momentum(0.9))}) {
      options.step = step;
      expect_replica_parity<IntegerMlp>(
          world, [] { return IntegerMlp(); }, integer_loss, options);
    }
  }));
}

TEST_P(Replicate, T50AGptTrainsWithAdamW) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    ReplicaParity options;
    options.replicate = small_buckets();
    options.replicate.bucket_bytes = 20'000;
    options.step =
        steps_of<torch::optim::AdamW>(torch::optim::AdamWOptions(1e-2));
    expect_replica_parity<models::Gpt>(
        world, [] { return small_gpt({.tied = true}); },
        token_loss<models::Gpt>, options);
  }));
}

TEST_P(Replicate, SherdsAdamWTakesTheNamedParameters) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model, reference;
    auto ddp = replicate(*model, world);
    AdamW ours(ddp.named_parameters(), {.learning_rate = 0.01});
    NamedParameters plain;
    for (const auto& leaf : unique_parameters(*reference)) {
      plain.items.push_back({leaf.name, leaf.tensor});
    }
    AdamW theirs(plain, {.learning_rate = 0.01});
    const auto leaves = unique_parameters(*reference);
    for (int batch = 0; batch < 3; ++batch) {
      reference_backward<IntegerMlp>(
          reference, leaves, integer_loss, batch, world);
      integer_loss(model, batch, world.rank()).backward();
      ours.step();
      theirs.step();
      ours.zero_grad();
      theirs.zero_grad();
    }
    expect_same_parameters(*model, leaves);
  }));
}

// By way of the module, as on one device; fully_shard refuses the former.
TEST_P(Replicate, T50TheModulesGradientsAreClippedAndClearedAsOnOneDevice) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool view : {true, false}) {
      IntegerMlp model, reference;
      auto options = small_buckets();
      options.gradient_as_bucket_view = view;
      auto ddp = replicate(*model, world, options);
      const auto leaves = unique_parameters(*reference);
      torch::optim::SGD sgd(model->parameters(), 0.5);
      torch::optim::SGD reference_sgd(reference->parameters(), 0.5);
      for (int batch = 0; batch < 4; ++batch) {
        reference_backward<IntegerMlp>(
            reference, leaves, integer_loss, batch, world);
        integer_loss(model, batch, world.rank()).backward();
        const double norm =
            torch::nn::utils::clip_grad_norm_(model->parameters(), 0.75);
        EXPECT_EQ(
            norm,
            torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.75));
        EXPECT_GT(norm, 0.75);
        expect_same_gradients(*model, leaves);
        sgd.step();
        reference_sgd.step();
        model->zero_grad(/*set_to_none=*/batch % 2 == 0);
        reference->zero_grad(/*set_to_none=*/batch % 2 == 0);
      }
      expect_same_parameters(*model, leaves);
    }
  }));
}

// Reductions of the last layers are under way, or done, while backward is still at
// the first: by the order of events.
TEST_P(Replicate, T50BucketsLeaveWhileBackwardGoesOn) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    for (const bool hooked : {false, true}) {
      Chain model(4, 6);
      auto options = small_buckets();
      options.bucket_bytes = 100;
      options.hook = hooked ? all_reduce_mean() : nullptr;
      auto ddp = replicate(*model, world, options);
      std::vector<std::int64_t> reduces;  // So far, when layer i has its turn.
      auto x = integer_rows(0, world.rank(), 6).requires_grad_();
      for (std::size_t i = 0; i < 4; ++i) {
        x = model->layer(i).forward(x).clamp(-2, 2);
        x.register_hook([&](const torch::Tensor&) {
          reduces.push_back(ddp.report().reduces);
        });
      }
      model->head(x).sum().backward();
      ASSERT_EQ(reduces.size(), 4U);  // From the last layer to the first.
      EXPECT_TRUE(std::is_sorted(reduces.begin(), reduces.end()));
      EXPECT_GE(reduces[0], 1);
      EXPECT_GE(reduces[3], reduces[0] + 2);
      EXPECT_GT(ddp.report().reduces, reduces[3]);
    }
  }));
}

TEST_P(Replicate, T51LocalGradientsAddUpUntilTheNextSynchronisedBackward) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const int micro : {1, 2, 3}) {
      for (const bool view : {true, false}) {
        ReplicaParity options;
        options.micro_batches = micro;
        options.replicate = small_buckets();
        options.replicate.gradient_as_bucket_view = view;
        expect_replica_parity<IntegerMlp>(
            world, [] { return IntegerMlp(); }, divisible_loss, options);
      }
    }
  }));
}

// As in a stage of a pipeline (1F1B): each backward follows the forward of the
// next micro-batch, and only the last one of a step averages.
TEST_P(Replicate, T12OneForwardOneBackwardAddsUpTheSameGradients) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    constexpr int kLast = 3;
    IntegerMlp model, reference;
    const auto leaves = unique_parameters(*reference);
    auto ddp = replicate(*model, world, small_buckets());
    for (int step = 0; step < 2; ++step) {
      for (int batch = 0; batch <= kLast; ++batch) {
        reference_backward<IntegerMlp>(
            reference, leaves, divisible_loss, batch, world);
      }
      auto loss = divisible_loss(model, 0, world.rank());
      for (int batch = 0; batch <= kLast; ++batch) {
        const auto earlier = loss;
        if (batch == kLast) {
          earlier.backward();
          continue;
        }
        loss = divisible_loss(model, batch + 1, world.rank());
        const auto local = ddp.no_sync();
        earlier.backward();
      }
      EXPECT_EQ(ddp.report().backwards, world.size() == 1 ? 0 : step + 1);
      expect_same_gradients(*model, leaves);
      sign_steps()(model->parameters())();
      sign_steps()(tensors_of(leaves))();
    }
    expect_same_parameters(*model, leaves);
  }));
}

TEST_P(Replicate, T51NothingIsExchangedInTheScope) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    {
      const auto scope = ddp.no_sync();
      for (int i = 0; i <= world.rank(); ++i) {  // Other numbers of them.
        integer_loss(model, i, world.rank()).backward();
      }
      EXPECT_EQ(ddp.report().reduces, 0);
    }
    world.barrier();
  }));
}

// A parameter that only micro-batches under no_sync() use is averaged too.
TEST_P(Replicate, T51WhatTheLastBackwardDoesNotUseIsAveragedAsWell) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference(3, 6), model(3, 6);
    const Pass<Chain> all = [](Chain& chain, int batch, int rank) {
      return chain->forward(integer_rows(batch, rank, 6)).sum();
    };
    const Pass<Chain> first = [](Chain& chain, int batch, int rank) {
      return chain->layer(0).forward(integer_rows(batch, rank, 6)).sum();
    };
    const auto leaves = unique_parameters(*reference);
    auto ddp = replicate(*model, world, small_buckets());
    reference_backward<Chain>(reference, leaves, all, 0, world);
    reference_backward<Chain>(reference, leaves, first, 1, world);
    {
      const auto scope = ddp.no_sync();
      all(model, 0, world.rank()).backward();
    }
    first(model, 1, world.rank()).backward();
    expect_same_gradients(*model, leaves);
  }));
}

TEST_P(Replicate, T52BucketsAreThoseOfTheReverseOrderForAChain) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 4);
    auto options = small_buckets();
    options.bucket_bytes = 80;
    auto ddp = replicate(*model, world, options);
    const std::vector<std::vector<std::string>> expected = {
        {"head.bias", "head.weight"},
        {"layers.1.bias", "layers.1.weight"},
        {"layers.0.bias", "layers.0.weight"}};
    EXPECT_EQ(ddp.report().buckets, expected);
    for (int batch = 0; batch < 2; ++batch) {
      model->forward(integer_rows(batch, world.rank(), 4)).sum().backward();
    }
    EXPECT_EQ(ddp.report().buckets.at(0), expected[0]);
    world.barrier();
  }));
}

// Layers are used in another order than they are registered in.
struct CrossedImpl : torch::nn::Module {
  torch::nn::Linear last{nullptr}, first{nullptr};
  CrossedImpl() {
    last = register_module("last", torch::nn::Linear(4, 4));
    first = register_module("first", torch::nn::Linear(4, 4));
    fill_with_integers(*this);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(first(x)); }
};
TORCH_MODULE(Crossed);

torch::Tensor crossed_loss(Crossed& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, 4)).sum();
}

TEST_P(Replicate, T52BucketsFollowTheOrderInWhichGradientsWereReady) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;  // Nothing is learnt where nothing is reduced.
    }
    Crossed model;
    ReplicateOptions options;
    options.first_bucket_bytes = 1;
    options.bucket_bytes = 1;
    auto ddp = replicate(*model, world, options);
    EXPECT_THAT(ddp.report().buckets.at(0), ElementsAre("first.bias"));
    crossed_loss(model, 0, world.rank()).backward();
    const auto report = ddp.report();
    EXPECT_EQ(report.bucket_version, 1);
    EXPECT_EQ(report.buckets.at(0).at(0).substr(0, 4), "last");
    EXPECT_EQ(report.buckets.at(3).at(0).substr(0, 5), "first");
    crossed_loss(model, 1, world.rank()).backward();
    EXPECT_EQ(ddp.report().bucket_version, 1);

    Crossed fixed;
    options.learn_bucket_order = false;
    auto other = replicate(*fixed, world, options);
    const auto before = other.report().buckets;
    crossed_loss(fixed, 0, world.rank()).backward();
    EXPECT_EQ(other.report().buckets, before);
    EXPECT_EQ(other.report().bucket_version, 0);
  }));
}

TEST_P(Replicate, T52ABackwardWithoutGradientsTeachesNoOrder) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    Crossed model;
    ReplicateOptions options;
    options.first_bucket_bytes = 1;
    options.bucket_bytes = 1;
    auto ddp = replicate(*model, world, options);
    const auto x = integer_rows(0, world.rank(), 4).requires_grad_();
    (void)model->forward(x);
    x.sum().backward();
    EXPECT_EQ(ddp.report().backwards, 1);
    EXPECT_EQ(ddp.report().bucket_version, 0);
    crossed_loss(model, 0, world.rank()).backward();
    EXPECT_EQ(ddp.report().bucket_version, 1);
    EXPECT_EQ(ddp.report().buckets.at(0).at(0).substr(0, 4), "last");
  }));
}

TEST_P(Replicate, T52AveragesSurviveNewBuckets) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool view : {true, false}) {
      ReplicaParity options;
      options.replicate.first_bucket_bytes = 1;
      options.replicate.bucket_bytes = 100;
      options.replicate.gradient_as_bucket_view = view;
      expect_replica_parity<Crossed>(
          world, [] { return Crossed(); }, crossed_loss, options);
    }
  }));
}

// Which layers of a chain a rank uses in a batch.
Pass<Chain> using_layers(
    const std::function<std::vector<int>(int batch, int rank)>& which) {
  return [which](Chain& chain, int batch, int rank) {
    auto x = integer_rows(batch, rank, 6).requires_grad_();
    (void)chain->head(x);  // A forward of this model, whatever it leads to.
    for (const int layer : which(batch, rank)) {
      x = chain->layer(static_cast<std::size_t>(layer)).forward(x).clamp(-2, 2);
    }
    return x.sum();
  };
}

TEST_P(Replicate, T53UnusedParametersCountAsZeroOrNotAtAll) {
  const std::vector<std::function<std::vector<int>(int, int)>> choices = {
      [](int, int) { return std::vector<int>{0, 2}; },
      [](int, int rank) { return std::vector<int>{rank % 4}; },
      [](int batch, int rank) { return std::vector<int>{(batch + rank) % 3}; },
      [](int batch, int rank) {  // Sometimes nothing at all.
        return batch % 2 == rank % 2 ? std::vector<int>{}
                                     : std::vector<int>{3, 1};
      }};
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    for (const auto& which : choices) {
      for (const bool view : {true, false}) {
        ReplicaParity options;
        options.steps = 4;
        options.replicate = small_buckets();
        options.replicate.gradient_as_bucket_view = view;
        const auto report = expect_replica_parity<Chain>(
            world, [] { return Chain(4, 6); }, using_layers(which), options);
        if (world.size() > 1) {
          EXPECT_THAT(report.unused, ::testing::Contains(HasSubstr("head")));
        }
      }
    }
  }));
}

// No optimizer clears: what no rank used keeps its average, bit for bit.
TEST_P(Replicate, T53WhatNoRankUsedKeepsItsGradient) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool view : {true, false}) {
      Chain model(3, 6);
      auto options = small_buckets();
      options.gradient_as_bucket_view = view;
      auto ddp = replicate(*model, world, options);
      const auto x = torch::full({1, 6}, 0.1 + 0.7 * world.rank());
      model->layer(0).forward(x).sum().backward();
      EXPECT_FALSE(model->head->weight.grad().defined());
      const auto before = model->layer(0).weight.grad().clone();
      model->layer(1).forward(x).sum().backward();
      EXPECT_TRUE(torch::equal(model->layer(0).weight.grad(), before));
      EXPECT_FALSE(model->head->weight.grad().defined());
      EXPECT_TRUE(model->layer(1).weight.grad().defined());
    }
  }));
}

TEST_P(Replicate, T55ABackwardThatUsesNoParameterTakesPart) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
      const auto x = integer_rows(batch, rank, 6).requires_grad_();
      const auto y = chain->forward(x).sum();
      return rank == batch % 2 ? x.sum() : y;  // Of an input alone.
    };
    ReplicaParity options;
    options.replicate = small_buckets();
    expect_replica_parity<Chain>(
        world, [] { return Chain(2, 6); }, pass, options);
  }));
}

TEST_P(Replicate, T58BuffersAreThoseOfRankZero) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool on : {true, false}) {
      Norm model, alone;
      auto ddp = replicate(*model, world, {.broadcast_buffers = on});
      for (int batch = 0; batch < 2; ++batch) {
        const auto rows = [&](int rank) {
          return integer_rows(batch, rank, 3) * (rank + 1.5);
        };
        model->forward(rows(world.rank())).sum().backward();
        alone->forward(rows(on ? 0 : world.rank())).sum().backward();
      }
      expect_close(
          model->norm->running_mean, alone->norm->running_mean, 0.0, "mean");
      expect_close(
          model->norm->running_var, alone->norm->running_var, 0.0, "variance");
      EXPECT_EQ(model->norm->num_batches_tracked.item<int>(), 2);
    }
  }));
}

TEST_P(Replicate, T50StartsWithTheValuesOfRankZero) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Norm model, expected;
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) {
        parameter.add_(world.rank());
      }
      model->norm->running_mean.fill_(world.rank());
    }
    auto ddp = replicate(*model, world);
    expect_same_parameters(*model, unique_parameters(*expected));
    EXPECT_EQ(model->norm->running_mean.sum().item<double>(), 0.0);
  }));
}

TEST_P(Replicate, T50KeepsStridesOfDenseParameters) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto make = [] {
      torch::nn::Conv2d conv(3, 4, 2);
      fill_with_integers(*conv);
      conv->weight.set_data(
          conv->weight.detach().to(at::MemoryFormat::ChannelsLast));
      return conv;
    };
    const Pass<torch::nn::Conv2d> pass = [](torch::nn::Conv2d& conv, int batch,
                                            int rank) {
      return conv->forward(small_integers({1, 3, 4, 4}, batch * 7 + rank))
          .square()
          .sum();
    };
    expect_replica_parity<torch::nn::Conv2d>(world, make, pass);
  }));
}

TEST_P(Replicate, T65ForwardsWithoutGradientsExchangeNothing) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Norm model;
    auto ddp = replicate(*model, world);
    if (world.rank() == 0) {  // Nobody else takes part.
      const torch::NoGradGuard no_grad;
      model->eval();
      EXPECT_TRUE(model->forward(torch::ones({2, 3})).defined());
      const c10::InferenceMode inference;
      EXPECT_TRUE(model->forward(torch::ones({2, 3})).defined());
      model->train();
    }
    (void)torch::autograd::grad(
        {model->forward(torch::ones({2, 3})).sum()}, {model->linear->weight});
    EXPECT_EQ(ddp.report().reduces, 0);
    world.barrier();
    model->forward(integer_rows(0, world.rank(), 3)).sum().backward();
    EXPECT_EQ(ddp.report().backwards, world.size() == 1 ? 0 : 1);
  }));
}

TEST_P(Replicate, T63AfterTheHandleTheModuleIsAPlainOneAndMayBeWrappedAgain) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model, reference;
    const auto leaves = unique_parameters(*reference);
    for (int wrap = 0; wrap < 2; ++wrap) {
      auto ddp = replicate(*model, world);
      reference_backward<IntegerMlp>(
          reference, leaves, integer_loss, wrap, world);
      integer_loss(model, wrap, world.rank()).backward();
      expect_same_gradients(*model, leaves);
      ddp.close();
      for (const auto& parameter : model->parameters()) {
        EXPECT_EQ(autograd::tag_of(parameter), nullptr);
      }
      expect_same_gradients(*model, leaves);  // Still readable.
      model->zero_grad();
      reference->zero_grad();
    }
    integer_loss(model, 0, world.rank()).backward();
    integer_loss(reference, 0, world.rank()).backward();
    expect_same_gradients(*model, leaves);
    world.barrier();
  }));
}

TEST_P(Replicate, T63TwoModelsAtOnce) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp one, two, reference;
    const auto leaves = unique_parameters(*reference);
    auto first = replicate(*one, world);
    auto second = replicate(*two, world);
    (integer_loss(one, 0, world.rank()) + integer_loss(two, 0, world.rank()))
        .backward();
    reference_backward<IntegerMlp>(reference, leaves, integer_loss, 0, world);
    expect_same_gradients(*one, leaves);
    expect_same_gradients(*two, leaves);
  }));
}

struct WordsImpl : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear head{nullptr};
  explicit WordsImpl(bool sparse) {
    table = register_module(
        "table",
        torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).sparse(sparse)));
    head = register_module("head", torch::nn::Linear(4, 1));
    fill_with_integers(*this);
  }
  // Some words twice; rank 2 has none.
  torch::Tensor loss(int batch, int rank) {
    const auto words = (torch::arange(5) * (rank + 2) + batch).remainder(9);
    return rank == 2 ? head(torch::ones({2, 4})).sum()
                     : head(table(words)).sum();
  }
};
TORCH_MODULE(Words);

TEST_P(Replicate, T60SparseGradientsStaySparse) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Words reference(false), model(true);
    const auto leaves = unique_parameters(*reference);
    const Pass<Words> pass = [](Words& words, int batch, int rank) {
      return words->loss(batch, rank) * 12;
    };
    auto ddp = replicate(*model, world);
    for (int batch = 0; batch < 4; ++batch) {
      std::optional<LocalGradientsScope> local;
      if (batch % 2 == 0) {
        local.emplace(ddp.no_sync());
      }
      reference_backward<Words>(reference, leaves, pass, batch, world);
      pass(model, batch, world.rank()).backward();
      if (batch % 2 == 0) {
        continue;
      }
      const auto& gradient = model->table->weight.grad();
      ASSERT_TRUE(gradient.defined());
      EXPECT_TRUE(gradient.is_sparse());
      expect_close(
          gradient.to_dense(), reference->table->weight.grad(), 0.0, "table");
      expect_close(
          model->head->weight.grad(), reference->head->weight.grad(), 0.0,
          "head");
      model->zero_grad();
      reference->zero_grad();
    }
  }));
}

TEST_P(Replicate, T60AModelMayHaveNothingButSparseGradients) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    // No shared_ptr holds it.
    torch::nn::EmbeddingImpl model(
        torch::nn::EmbeddingOptions(5, 2).sparse(true));
    fill_with_integers(model);
    auto ddp = replicate(model, world);
    model.forward(torch::tensor({world.rank() % 5})).sum().backward();
    const auto dense = model.weight.grad().to_dense();
    for (int rank = 0; rank < 5; ++rank) {
      EXPECT_EQ(
          dense[rank][0].item<float>(),
          rank < world.size() ? 1.0F / static_cast<float>(world.size()) : 0.0F);
    }
  }));
}

// The last rank leaves, the others go on with their optimizer, down to one.
TEST_P(Replicate, T62TheWorldMayChangeBetweenSteps) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model, reference;
    const auto leaves = unique_parameters(*reference);
    const auto step = sign_steps()(model->parameters());
    const auto step_reference = sign_steps()(tensors_of(leaves));
    auto ddp = replicate(*model, world);
    auto now = world;
    for (int ranks = world.size(); ranks >= 1; --ranks) {
      for (int batch = 0; batch < 2; ++batch) {
        reference_backward<IntegerMlp>(
            reference, leaves, integer_loss, batch, now);
        integer_loss(model, batch, now.rank()).backward();
        expect_same_gradients(*model, leaves);
        step_reference();
        step();
      }
      if (now.rank() == ranks - 1) {
        break;
      }
      now = World::from_store(
          c10::make_intrusive<c10d::PrefixStore>(
              "ranks " + std::to_string(ranks - 1), world.impl()->store),
          world.rank(), ranks - 1, world.options());
      ddp.set_world(now);
    }
    expect_same_parameters(*model, leaves);
    ddp.close();
    world.barrier();
  }));
}

// The backward to come was armed by the forward that has none.
TEST_P(Replicate, T62ARankMayGoOnAloneAfterAForwardWithoutBackward) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    (void)integer_loss(model, 0, world.rank());
    ddp.set_world(World::single());
    integer_loss(model, 0, world.rank()).backward();
    EXPECT_TRUE(model->first->weight.grad().defined());
    world.barrier();
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Replicate,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
