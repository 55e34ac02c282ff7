// SPDX-License-Identifier: Apache-2.0
//
// Parameters that a backward uses several times or not at all, with graphs that
// stay the same and others (T54).
#include "ddp/replica_parity.h"
#include "support/ranks.h"
#include "support/reentrant.h"
#include "support/small_models.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <sherd/autograd/checkpoint.h>

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReplicateGraphs : public ::testing::TestWithParam<int> {};

// Buckets of one or two parameters each.
ReplicateOptions buckets_of_few() {
  ReplicateOptions options;
  options.bucket_bytes = 300;
  options.first_bucket_bytes = 8;
  return options;
}

// Each part of a gradient is one for autograd, and the last may come after its
// bucket was reduced.
TEST_P(ReplicateGraphs, T54ReentrantSegmentsBringAGradientInParts) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
      const auto segment = [&chain](const torch::Tensor& x) {
        return chain->layer(0).forward(x).clamp(-2, 2);
      };
      auto x = integer_rows(batch, rank, 6).requires_grad_();
      x = reentrant_checkpoint(segment, x);
      x = chain->layer(1).forward(x).clamp(-2, 2);
      return reentrant_checkpoint(segment, x).sum() * 12;
    };
    for (const bool static_graph : {false, true}) {
      ReplicaParity options;
      options.replicate = buckets_of_few();
      options.replicate.static_graph = static_graph;
      const auto report = expect_replica_parity<Chain>(
          world, [] { return Chain(2, 6); }, pass, options);
      if (world.size() > 1) {
        EXPECT_EQ(std::ranges::count(report.ready_order, "layers.0.weight"), 2);
      }
    }
  }));
}

// One rank makes them, and the next backward is that of another model.
TEST_P(ReplicateGraphs, T54CopiesOfParametersAreNoUseOfThem) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp copied, trained;
    auto ddp = replicate(*copied, world);
    auto other = replicate(*trained, world);
    if (world.rank() == 0) {
      for (const auto& parameter : copied->parameters()) {
        (void)parameter.clone();
        (void)parameter.detach().clone();
      }
    }
    divisible_loss(trained, 0, world.rank()).backward();
    EXPECT_EQ(ddp.report().backwards, 0);
    divisible_loss(copied, 0, world.rank()).backward();
    EXPECT_EQ(ddp.report().backwards, world.size() > 1 ? 1 : 0);
  }));
}

// Its gradient comes once, when the first segment has been run again, too.
TEST_P(ReplicateGraphs, T54CheckpointedSegmentsMayUseAParameterTwice) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
      const auto layer = [&chain](const torch::Tensor& x) {
        return chain->layer(0).forward(x).clamp(-2, 2);
      };
      auto x = integer_rows(batch, rank, 6).requires_grad_();
      x = checkpoint({.early_stop = false}, layer, x);
      x = chain->layer(1).forward(x).clamp(-2, 2);
      return checkpoint(layer, x).sum();
    };
    ReplicaParity options;
    options.replicate = buckets_of_few();
    expect_replica_parity<Chain>(
        world, [] { return Chain(2, 6); }, pass, options);
  }));
}

// The second layer unused, the first used twice: buckets leave all the same.
TEST_P(ReplicateGraphs, T54AStaticGraphIsTheSameEachTime) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
      const auto layer = [&chain](const torch::Tensor& x) {
        return chain->layer(0).forward(x).clamp(-2, 2);
      };
      const auto x = integer_rows(batch, rank, 6).requires_grad_();
      return chain->head(checkpoint(layer, layer(x))).sum();
    };
    ReplicaParity options;
    options.replicate = buckets_of_few();
    options.replicate.static_graph = true;
    expect_replica_parity<Chain>(
        world, [] { return Chain(2, 6); }, pass, options);
  }));
}

TEST_P(ReplicateGraphs, T54AnotherGraphIsRefusedOnEveryRank) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    Chain model(2, 6);
    auto options = buckets_of_few();
    options.static_graph = true;
    auto ddp = replicate(*model, world, options);
    const auto run = [&](bool all) {
      const auto x = integer_rows(0, world.rank(), 6);
      const auto y = all ? model->forward(x) : model->layer(0).forward(x);
      return error_of([&] { y.sum().backward(); });
    };
    EXPECT_EQ(run(false), "no error");
    EXPECT_EQ(run(false), "no error");
    EXPECT_THAT(
        run(world.rank() == 1),
        AllOf(
            HasSubstr("static_graph"), HasSubstr("layers.1.weight"),
            HasSubstr(world.rank() == 1 ? "" : "rank 1")));
    EXPECT_EQ(run(false), "no error");
  }));
}

// As for a generator, while its discriminator learns from values that carry no gradient.
TEST_P(ReplicateGraphs, T54ABackwardOfAnotherModelIsNoOtherGraph) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 6);
    auto options = buckets_of_few();
    options.static_graph = true;
    auto ddp = replicate(*model, world, options);
    auto other = torch::ones({1}).requires_grad_();
    for (int batch = 0; batch < 3; ++batch) {
      const auto made = model->forward(integer_rows(batch, world.rank(), 6));
      (made.detach().sum() * other).sum().backward();
      EXPECT_FALSE(model->head->weight.grad().defined());
      made.sum().backward();
      EXPECT_TRUE(model->head->weight.grad().defined());
      model->zero_grad();
    }
    EXPECT_TRUE(ddp.report().same_graph);
  }));
}

// Gradients stay from step to step, and the first rank does not use the head: its
// bucket leaves early there, although an average lies in it.
TEST_P(ReplicateGraphs, T54AveragesThatStayAreAveragedAgainWithAStaticGraph) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool hooked : {false, true}) {
      for (const bool view : {true, false}) {
        Chain plain(2, 6), fixed(2, 6);
        auto options = buckets_of_few();
        options.gradient_as_bucket_view = view;
        options.hook = hooked ? all_reduce_mean() : nullptr;
        auto first = replicate(*plain, world, options);
        options.hook = hooked ? all_reduce_mean() : nullptr;
        options.static_graph = true;
        auto second = replicate(*fixed, world, options);
        for (int batch = 0; batch < 3; ++batch) {
          for (auto* model : {&plain, &fixed}) {
            auto x = integer_rows(batch, world.rank(), 6);
            x = (*model)->layer(0).forward(x);
            if (world.rank() > 0) {
              x = (*model)->head(x);
            }
            (x.sum() * 24).backward();
          }
          const auto expected = plain->named_parameters();
          for (const auto& item : fixed->named_parameters()) {
            const auto& gradient = expected[item.key()].grad();
            ASSERT_EQ(item.value().grad().defined(), gradient.defined());
            // A late sum is added to the mean: it rounds once more.
            EXPECT_TRUE(
                !gradient.defined() ||
                torch::allclose(item.value().grad(), gradient, 1e-5, 1e-5))
                << item.key() << (view ? " as a view" : " as a copy");
          }
        }
      }
    }
  }));
}

// The first rank freezes the head, so that its bucket leaves early there, too.
TEST_P(ReplicateGraphs, T54AveragesOfAParameterThatARankHasFrozenStay) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool view : {true, false}) {
      Chain model(1, 6);
      auto options = buckets_of_few();
      options.bucket_bytes = 8;  // One for each parameter.
      options.gradient_as_bucket_view = view;
      auto ddp = replicate(*model, world, options);
      auto& head = model->head->weight;
      // Gives the same gradients on all ranks.
      const auto backward = [&] {
        const auto x = model->layer(0).forward(integer_rows(0, 0, 6));
        (model->head(x).sum() * 12).backward();
      };
      backward();
      const auto once = head.grad().clone();
      for (auto& parameter : model->head->parameters()) {
        parameter.requires_grad_(world.rank() > 0);
      }
      for (int more = 1; more < 3; ++more) {
        backward();
        const double share = (world.size() - 1.0) / world.size();
        EXPECT_TRUE(
            torch::allclose(head.grad(), once * (1 + more * share), 1e-5, 0))
            << more << (view ? " as a view" : " as a copy");
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReplicateGraphs,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
