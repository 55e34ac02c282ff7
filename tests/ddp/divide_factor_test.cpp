// SPDX-License-Identifier: Apache-2.0
//
// ReplicateOptions::gradient_divide_factor: beside one process that adds up every rank's gradient and
// divides by the factor, whatever autograd adds to what ranks have summed before.
#include "ddp/replica_parity.h"
#include "support/optional_gradient.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <limits>
#include <sstream>
#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReplicateDivideFactor : public ::testing::TestWithParam<int> {};

// Gradients of ranks are small integers; with three ranks a factor is rounded.
double tolerance_of(const World& world) {
  return world.size() == 3 ? 1e-6 : 0.0;
}

// `.grad()` of each parameter of the reference becomes what it was and the sum over ranks, divided.
void add_divided_sum(
    IntegerMlp& reference,
    const std::vector<int>& ranks,
    const std::vector<int>& batches,
    double divisor) {
  std::vector<torch::Tensor> before;
  for (auto& parameter : reference->parameters()) {
    before.push_back(parameter.grad());
    parameter.mutable_grad().reset();
  }
  for (const int rank : ranks) {
    for (const int batch : batches) {
      integer_loss(reference, batch, rank).backward();
    }
  }
  const torch::NoGradGuard no_grad;
  std::size_t p = 0;
  for (auto& parameter : reference->parameters()) {
    auto& grad = parameter.mutable_grad();
    grad.mul_(1.0 / divisor);
    if (before[p].defined()) {
      grad.add_(before[p]);
    }
    ++p;
  }
}

void expect_near(
    const World& world,
    const torch::nn::Module& module,
    const torch::nn::Module& reference) {
  const auto expected = reference.named_parameters();
  for (const auto& item : module.named_parameters()) {
    expect_close(
        item.value().grad(), expected[item.key()].grad(), tolerance_of(world),
        "gradient of " + item.key());
  }
}

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) {
    ranks.push_back(rank);
  }
  return ranks;
}

ReplicateOptions divided_by(double factor) {
  ReplicateOptions options;
  options.gradient_divide_factor = factor;
  options.bucket_bytes = 300;
  options.first_bucket_bytes = 8;
  return options;
}

// Gradients add up over synchronised backwards, over one under no_sync(), and begin anew.
void expect_divided(const World& world, const ReplicateOptions& options) {
  const double factor = *options.gradient_divide_factor;
  IntegerMlp reference, model;
  auto ddp = replicate(*model, world, options);
  const auto backward = [&](int batch) {
    integer_loss(model, batch, world.rank()).backward();
  };
  const auto ranks = all_ranks(world);
  backward(0);
  add_divided_sum(reference, ranks, {0}, factor);
  expect_near(world, *model, *reference);
  backward(1);
  add_divided_sum(reference, ranks, {1}, factor);
  expect_near(world, *model, *reference);
  {
    const auto local = ddp.no_sync();
    backward(2);
  }
  backward(3);
  add_divided_sum(reference, ranks, {2, 3}, factor);
  expect_near(world, *model, *reference);
  model->zero_grad();
  reference->zero_grad();
  backward(4);
  add_divided_sum(reference, ranks, {4}, factor);
  expect_near(world, *model, *reference);
}

TEST_P(ReplicateDivideFactor, B21ReplacesTheNumberOfReplicas) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const double factor : {1.0, 0.5 * world.size(), 4.0 * world.size()}) {
      for (const bool view : {true, false}) {
        auto options = divided_by(factor);
        options.gradient_as_bucket_view = view;
        expect_divided(world, options);
      }
    }
    expect_divided(world, divided_by(world.size()));  // As without it.
  }));
}

TEST_P(ReplicateDivideFactor, B21AppliesToTheMeanThatAHookLeaves) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    auto options = divided_by(1.0);
    options.hook = all_reduce_mean();
    expect_divided(world, options);
  }));
}

// What a backward does not use stays as it is, on ranks that use it as on others.
TEST_P(ReplicateDivideFactor, B21KeepsSumsOfParametersThatAreNotUsedAgain) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(3, 4), reference(3, 4);
    auto ddp = replicate(*model, world, divided_by(1.0));
    const auto loss = [](Chain& chain, std::size_t layer, int batch, int rank) {
      return chain->layer(layer).forward(integer_rows(batch, rank, 4)).sum();
    };
    for (int batch = 0; batch < 3; ++batch) {
      // Batch 1: every second rank uses another layer; layer 2 is never used again.
      const auto layer = [&](int rank) {
        return batch == 0 ? std::size_t{2}
            : batch == 1  ? static_cast<std::size_t>(rank % 2)
                          : std::size_t{0};
      };
      loss(model, layer(world.rank()), batch, world.rank()).backward();
      for (const int rank : all_ranks(world)) {
        loss(reference, layer(rank), batch, rank).backward();
      }
      const auto expected = reference->named_parameters();
      for (const auto& item : model->named_parameters()) {
        const auto& gradient = expected[item.key()].grad();
        ASSERT_EQ(item.value().grad().defined(), gradient.defined())
            << item.key();
        if (gradient.defined()) {
          expect_close(
              item.value().grad(), gradient, tolerance_of(world), item.key());
        }
      }
    }
  }));
}

TEST_P(ReplicateDivideFactor, B21AnUndefinedGradientKeepsTheSum) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const float factor : {1.0F, 2.0F}) {
      const auto module = std::make_shared<torch::nn::Module>("m");
      const auto weight = module->register_parameter("w", torch::ones({7}));
      auto ddp = replicate(*module, world, divided_by(factor));
      const auto sum =
          torch::full({7}, static_cast<float>(world.size()) / factor);
      sum_with(weight, Gradient::kOnes).backward();
      EXPECT_TRUE(torch::allclose(weight.grad(), sum));
      sum_with(weight, Gradient::kUndefined).backward();
      EXPECT_TRUE(torch::allclose(weight.grad(), sum));
    }
  }));
}

TEST_P(ReplicateDivideFactor, B21LeavesAutogradGradAsItIs) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp reference, model;
    auto ddp = replicate(*model, world, divided_by(2.0));
    const auto gradients = [&](IntegerMlp& mlp) {
      return torch::autograd::grad(
          {integer_loss(mlp, 0, world.rank())}, mlp->parameters());
    };
    const auto expected = gradients(reference);
    const auto found = gradients(model);
    for (std::size_t p = 0; p < expected.size(); ++p) {
      EXPECT_TRUE(torch::equal(found[p], expected[p])) << "parameter " << p;
    }
  }));
}

TEST_P(ReplicateDivideFactor, B21HoldsForSparseGradients) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto make = [] {
      torch::nn::Embedding embedding(
          torch::nn::EmbeddingOptions(6, 2).sparse(true));
      fill_with_integers(*embedding);
      return embedding;
    };
    auto model = make();
    auto reference = make();
    auto ddp = replicate(*model, world, divided_by(1.0));
    const auto loss = [](torch::nn::Embedding& embedding, int batch, int rank) {
      const auto rows = torch::tensor({batch, rank, 5}, torch::kLong);
      return embedding->forward(rows).sum() * (rank + 1);
    };
    for (int batch = 0; batch < 2; ++batch) {
      loss(model, batch, world.rank()).backward();
      for (const int rank : all_ranks(world)) {
        loss(reference, batch, rank).backward();
      }
      expect_close(
          model->weight.grad().to_dense(), reference->weight.grad().to_dense(),
          tolerance_of(world), "sparse gradient");
    }
  }));
}

TEST_P(ReplicateDivideFactor, B21InAJoinScopeTheRestOfTheRanksKeepsItsShare) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const double factor = 2.0 * world.size();
    for (const bool initial : {true, false}) {
      IntegerMlp reference, model;
      auto ddp = replicate(*model, world, divided_by(factor));
      auto join = ddp.join({.divide_by_initial_world_size = initial});
      for (int batch = 0; batch < 1 + world.rank(); ++batch) {
        std::vector<int> active;
        for (int rank = batch; rank < world.size(); ++rank) {
          active.push_back(rank);
        }
        const double divisor = initial
            ? factor
            : factor * static_cast<double>(active.size()) / world.size();
        reference->zero_grad();
        model->zero_grad();
        add_divided_sum(reference, active, {batch}, divisor);
        integer_loss(model, batch, world.rank()).backward();
        const auto expected = reference->named_parameters();
        for (const auto& item : model->named_parameters()) {
          expect_close(
              item.value().grad(), expected[item.key()].grad(), 1e-6,
              "gradient of " + item.key());
        }
      }
      join.finish();
      // Afterwards all take part again.
      reference->zero_grad();
      model->zero_grad();
      add_divided_sum(reference, all_ranks(world), {7}, factor);
      integer_loss(model, 7, world.rank()).backward();
      expect_near(world, *model, *reference);
    }
  }));
}

TEST_P(ReplicateDivideFactor, B21CountsTheReplicasOfAMesh) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() != 4) {
      return;
    }
    for (const int replicas : {1, 2, 4}) {
      const Mesh mesh(world, {.replicate = replicas});
      IntegerMlp reference, model;
      auto ddp = replicate(*model, mesh, divided_by(1.0));
      for (int batch = 0; batch < 2; ++batch) {
        integer_loss(model, batch, world.rank()).backward();
        add_divided_sum(reference, mesh.replicate_ranks(), {batch}, 1.0);
        expect_near(world, *model, *reference);
      }
    }
  }));
}

TEST_P(ReplicateDivideFactor, B21HoldsInAnotherWorld) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp reference, model;
    auto ddp = replicate(*model, World::single(), divided_by(2.0));
    integer_loss(model, 0, 0).backward();
    add_divided_sum(reference, {0}, {0}, 2.0);
    expect_near(world, *model, *reference);
    ddp.set_world(world);
    model->zero_grad();
    reference->zero_grad();
    integer_loss(model, 1, world.rank()).backward();
    add_divided_sum(reference, all_ranks(world), {1}, 2.0);
    expect_near(world, *model, *reference);
  }));
}

TEST(ReplicateDivideFactorAlone, B21IsKeptWhenTorchLoadReplacesParameters) {
  expect_all_ok(run_ranks(1, [](World world) {
    IntegerMlp reference, model;
    auto ddp = replicate(*model, world, divided_by(4.0));
    for (int batch = 0; batch < 2; ++batch) {
      std::stringstream file;
      torch::save(model, file);
      torch::load(model, file);
      integer_loss(model, batch, 0).backward();
      add_divided_sum(reference, {0}, {batch}, 4.0);
      expect_near(world, *model, *reference);
    }
  }));
}

TEST_P(ReplicateDivideFactor, B21OneThatDiffersOrHasNoSenseIsRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model;
    const auto refusal = [&](double factor) {
      return error_of(
          [&] { (void)replicate(*model, world, divided_by(factor)); });
    };
    for (const double factor :
         {0.0, -1.0, std::numeric_limits<double>::infinity(),
          std::numeric_limits<double>::quiet_NaN()}) {
      EXPECT_THAT(
          refusal(factor), HasSubstr("options.gradient_divide_factor is"));
    }
    if (world.size() > 1) {
      EXPECT_THAT(
          refusal(2.0 + world.rank()),
          AllOf(HasSubstr("gradients divided by"), HasSubstr("rank")));
      EXPECT_THAT(
          error_of([&] {
            ReplicateOptions options;
            if (world.rank() == 1) {
              options.gradient_divide_factor = 1.0;
            }
            (void)replicate(*model, world, options);
          }),
          HasSubstr("gradients divided by 1"));
    }
    auto ddp = replicate(*model, world);  // The world is as good as before.
    integer_loss(model, 0, world.rank()).backward();
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReplicateDivideFactor,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
