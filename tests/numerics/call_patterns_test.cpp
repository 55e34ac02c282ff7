// SPDX-License-Identifier: Apache-2.0
//
// Modules used in unusual ways: often, partly, recursively, without inputs.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <sherd/optim/sgd.h>

namespace sherd::test {
namespace {

class CallPatterns : public testing::TestWithParam<int> {
 protected:
  // Two backwards of one pass are scaled one by one; a third is no fp32 number.
  static double two_backwards_tolerance(const World& world) {
    return world.size() == 3 ? 1e-6 : 0.0;
  }
};

Chain chain() { return Chain(4, 6); }

torch::Tensor sum_of_rows(Chain& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, 6)).sum();
}

TEST_P(CallPatterns, T06AModuleCalledSeveralTimesInOneForward) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.shard.budget_bytes = 512;
    expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          auto x = integer_rows(batch, rank, 6);
          for (const std::size_t i : {0U, 1U, 0U, 2U, 1U, 0U}) {
            x = model->layer(i).forward(x).clamp(-2, 2);
          }
          return model->head(x).sum();
        },
        options);
  }));
}

TEST_P(CallPatterns, T07ASubmoduleForwardAndBackwardBeforeTheRoot) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.tolerance = two_backwards_tolerance(world);
    expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          const auto x = integer_rows(batch, rank, 6);
          model->layer(2).forward(x).sum().backward();
          return model->forward(x).sum();
        },
        options);
  }));
}

TEST_P(CallPatterns, T13TwoForwardsOfWhichOneIsAReferenceWithoutGradient) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          const auto x = integer_rows(batch, rank, 6);
          const auto y = model->forward(x);
          torch::Tensor target;
          {
            const torch::NoGradGuard no_grad;
            target = model->forward(x + 1).clamp(-2, 2);
          }
          return (y * target).sum();
        });
  }));
}

TEST_P(CallPatterns, T13ASectionWithoutGradientInsideAForward) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.steps = 4;
    options.shard.budget_bytes = 512;
    expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          auto x = model->layer(0).forward(integer_rows(batch, rank, 6));
          torch::Tensor target;
          {
            const torch::NoGradGuard no_grad;
            target = model->layer(2).forward(x).clamp(-2, 2);
          }
          for (const std::size_t i : {1U, 3U}) {
            x = model->layer(i).forward(x.clamp(-2, 2));
          }
          return model->head(x.clamp(-2, 2) * target).sum();
        },
        options);
  }));
}

// The evaluation begins elsewhere than the forward that had no backward.
TEST_P(CallPatterns, T13AnEvaluationAfterAForwardWhoseResultIsThrownAway) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.steps = 4;
    options.shard.budget_bytes = 512;
    expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          const auto x = integer_rows(batch, rank, 6);
          torch::Tensor target;
          if (batch % 2 == 1) {
            (void)model->forward(x + 1);
          }
          {
            const torch::NoGradGuard no_grad;
            target = model->layer(2).forward(x).clamp(-2, 2);
            target = target + model->layer(0).forward(x).clamp(-2, 2);
          }
          auto y = model->layer(0).forward(x).clamp(-2, 2);
          return model->head(y * target).sum();
        },
        options);
  }));
}

TEST_P(CallPatterns, T13TwoForwardsThatShareOneBackward) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          const auto first = model->forward(integer_rows(batch, rank, 6));
          const auto second = model->forward(integer_rows(batch + 7, rank, 6));
          return first.sum() + 2 * second.sum();
        });
  }));
}

TEST_P(CallPatterns, T13AForwardWhoseResultIsThrownAway) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          (void)model->forward(integer_rows(batch + 1, rank, 6));
          return sum_of_rows(model, batch, rank);
        });
  }));
}

TEST_P(CallPatterns, EvaluationBetweenStepsSeesTheNewValues) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference = chain();
    Chain model = chain();
    auto fsdp = fully_shard(*model, world);
    const auto leaves = unique_parameters(*reference);
    const auto step_reference = sign_steps()(tensors_of(leaves));
    const auto step_shards = sign_steps()(fsdp.parameters());
    for (int step = 0; step < 3; ++step) {
      reference_backward<Chain>(reference, leaves, sum_of_rows, step, world);
      sum_of_rows(model, step, world.rank()).backward();
      step_reference();
      step_shards();
      fsdp.publish();
      const torch::NoGradGuard no_grad;
      model->eval();
      // Ranks may look at different inputs.
      const auto x = integer_rows(50 + step, world.rank(), 6);
      expect_close(model->forward(x), reference->forward(x), 0.0, "evaluation");
      model->train();
    }
  }));
}

// An optimizer that does not publish has not written yet when something else publishes.
TEST_P(CallPatterns, AStepAfterASummonOrAPublishIsPublishedByTheNextForward) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto train = [&](OptimizerAxes axes, auto publishes) {
      Chain reference = chain();
      Chain model = chain();
      FullyShardOptions options;
      options.optimizer_axes = axes;
      const int replicas = axes == OptimizerAxes::kBoth ? world.size() : 1;
      auto fsdp =
          fully_shard(*model, Mesh(world, {.replicate = replicas}), options);
      const auto leaves = unique_parameters(*reference);
      const auto step_reference = sign_steps()(tensors_of(leaves));
      const auto step_shards = sign_steps()(fsdp.parameters());
      for (int step = 0; step < 3; ++step) {
        const auto expected = reference_backward<Chain>(
            reference, leaves, sum_of_rows, step, world);
        const auto found = sum_of_rows(model, step, world.rank());
        expect_close(found.detach(), expected, 0.0, "loss");
        found.backward();
        publishes(fsdp);
        step_reference();
        step_shards();
      }
    };
    for (const auto axes : {OptimizerAxes::kShard, OptimizerAxes::kBoth}) {
      train(axes, [](FullyShardedDataParallel& fsdp) { fsdp.publish(); });
      train(axes, [](FullyShardedDataParallel& fsdp) {
        (void)fsdp.summon_full_parameters({.read_only = true});
      });
      train(axes, [](FullyShardedDataParallel& fsdp) {
        (void)fsdp.full_precision();
      });
    }
  }));
}

// The teacher's forward records gradients, but backward ends before it.
TEST_P(CallPatterns, ABackwardThatEndsBeforeAModelIsNoStepOfIt) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain teacher = chain();
    Chain student = chain();
    auto taught_by = fully_shard(*teacher, world);
    auto fsdp = fully_shard(*student, world);
    Sgd sgd(fsdp.named_parameters(), {.learning_rate = 0.1});
    for (int step = 0; step < 3; ++step) {
      const auto x = integer_rows(step, world.rank(), 6);
      const auto wanted = teacher->forward(x);
      (student->forward(x) - wanted.detach()).square().sum().backward();
      sgd.step();
      sgd.zero_grad();
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(torch::equal(teacher->forward(x), wanted));
    }
  }));
}

TEST_P(CallPatterns, T19AListOfWhichEachBatchUsesAnotherPart) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.steps = 5;
    expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          auto x = integer_rows(batch, rank, 6);
          for (int i = batch % 3; i < 4; i += 1 + batch % 2) {
            auto& layer = model->layer(static_cast<std::size_t>(i));
            x = layer.forward(x).clamp(-2, 2);
          }
          return model->head(x).sum();
        },
        options);
  }));
}

// The layers run once, and the head chunk by chunk, each with a backward of its own, so that the
// logits of one chunk are in memory at a time.
TEST_P(CallPatterns, T18ALossInChunks) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const Pass<Chain> whole = [](Chain& model, int batch, int rank) {
      return sum_of_rows(model, batch, rank) * 12;
    };
    Chain reference = chain();
    Chain model = chain();
    const auto leaves = unique_parameters(*reference);
    const Slicing slicing(*reference, world, {});
    auto fsdp = fully_shard(*model, world);
    const Sgd publishes_in_its_step(fsdp.named_parameters());
    reference_backward<Chain>(reference, leaves, whole, 0, world);
    auto hidden = integer_rows(0, world.rank(), 6);
    for (std::size_t i = 0; i < 4; ++i) {
      hidden = model->layer(i).forward(hidden).clamp(-2, 2);
    }
    const auto cut = hidden.detach().requires_grad_();
    for (const auto& row : cut.chunk(2)) {
      (model->head(row).sum() * 12).backward();
    }
    hidden.backward(cut.grad());
    expect_gradients(slicing, leaves, fsdp, 0.0);
  }));
}

// All layers are one unit, of which every other one runs.
TEST_P(CallPatterns, T18PartOfAUnit) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.shard.units = units::by_name("layers");
    const auto report = expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          auto x = integer_rows(batch, rank, 6);
          for (const std::size_t i : {0U, 2U}) {
            x = model->layer(i).forward(x).clamp(-2, 2);
          }
          return model->head(x).sum();
        },
        options);
    EXPECT_EQ(report.units, 2);
  }));
}

// A list of nested units, each of which calls the next.
struct NestImpl : torch::nn::Module {
  torch::nn::Linear before{nullptr}, after{nullptr};
  std::shared_ptr<NestImpl> inner;
  explicit NestImpl(int depth) {
    before = register_module("before", torch::nn::Linear(3, 3));
    if (depth > 1) {
      inner = register_module("inner", std::make_shared<NestImpl>(depth - 1));
    }
    after = register_module("after", torch::nn::Linear(3, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto y = before(x).clamp(-2, 2);
    return after(inner ? inner->forward(y) : y).clamp(-2, 2);
  }
};
TORCH_MODULE(Nest);

TEST_P(CallPatterns, T19UnitsNestedFiftyDeep) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.steps = 2;
    options.shard.units = units::of_type<NestImpl>();
    const auto report = expect_rank_parity<Nest>(
        world,
        [] {
          Nest nest(50);
          fill_with_integers(*nest);
          return nest;
        },
        [](Nest& nest, int batch, int rank) {
          return nest->forward(integer_rows(batch, rank, 3)).sum();
        },
        options);
    EXPECT_EQ(report.units, 50);
  }));
}

// Its output depends on nothing but its parameters.
struct TableImpl : torch::nn::Module {
  torch::Tensor table;
  torch::nn::ModuleList layers;
  TableImpl() {
    table = register_parameter("table", torch::zeros({5, 3}));
    register_module("layers", layers);
    layers->push_back(torch::nn::Linear(3, 3));
    layers->push_back(torch::nn::Linear(3, 1));
    fill_with_integers(*this);
  }
  torch::Tensor forward() {
    auto x = table * 2 + table.sum();
    for (const auto& layer : *layers) {
      x = layer->as<torch::nn::Linear>()->forward(x);
    }
    return x;
  }
};
TORCH_MODULE(Table);

TEST_P(CallPatterns, T19ARootWithoutInputs) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_rank_parity<Table>(
        world, [] { return Table(); },
        [](Table& model, int, int) { return model->forward().sum(); });
  }));
}

TEST_P(CallPatterns, RetainedGraphsAddTheirGradientsTwice) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.tolerance = two_backwards_tolerance(world);
    expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          auto loss = sum_of_rows(model, batch, rank);
          loss.backward({}, /*retain_graph=*/true);
          return loss;
        },
        options);
  }));
}

TEST_P(CallPatterns, GradientsAskedForDirectlyAreNotReduced) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    const auto report = expect_rank_parity<Chain>(
        world, [] { return chain(); },
        [](Chain& model, int batch, int rank) {
          auto x = integer_rows(batch, rank, 6).requires_grad_();
          const auto y = model->forward(x).sum();
          const auto slope = torch::autograd::grad({y}, {x}, {}, true)[0];
          return (model->forward(x.detach()) * slope.sum()).sum();
        },
        options);
    if (world.size() > 1) {
      EXPECT_EQ(report.backwards, 3);
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    CallPatterns,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
