// SPDX-License-Identifier: Apache-2.0
//
// Uses of autograd and threads other than plain forward and backward.
#include <array>
#include <thread>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <sherd/autograd/touch.h>
#include <torch/script.h>
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

namespace nn = torch::nn;
using Tensors = std::vector<at::Tensor>;

// Three weights in a chain; the results of `use` are compared between a plain copy and one with a
// unit per weight.
void expect_same(const std::function<Tensors(const Tensors&)>& use) {
  const auto made = [] {
    torch::manual_seed(kSeed);
    Tensors weights;
    for (int i = 0; i < 3; ++i) {
      weights.push_back(at::randn({4, 4}).requires_grad_());
    }
    return weights;
  };
  const auto run = [&use](const Tensors& weights) {
    torch::manual_seed(kSeed + 1);
    return use(weights);
  };
  const TrainingResult expected = run(made());
  for (const int whole_max : {0, 1}) {
    SCOPED_TRACE(whole_max);
    FakeUnitCache cache(whole_max);
    const auto weights = made();
    for (const auto& w : weights) {
      cache.add_unit({w});
    }
    EXPECT_TRUE(bit_equal(run(weights), expected));
    EXPECT_GT(cache.fills(0), 0);
    EXPECT_EQ(cache.pins(), 0);
  }
}

at::Tensor chain(const Tensors& w) {
  return at::randn({3, 4}).mm(w[0]).tanh().mm(w[1]).tanh().mm(w[2].t()).cos();
}

Tensors gradients(const Tensors& weights) {
  Tensors out;
  for (const auto& w : weights) {
    out.push_back(w.grad().clone());
  }
  return out;
}

TEST(ShardedAutograd, RetainGraphAndSecondBackward) {
  expect_same([](const Tensors& w) {
    const auto loss = chain(w).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return gradients(w);
  });
}

TEST(ShardedAutograd, DoubleBackward) {
  expect_same([](const Tensors& w) {
    const auto first = torch::autograd::grad(
        {chain(w).sum()}, w, {}, /*retain_graph=*/true, /*create_graph=*/true);
    auto penalty = at::zeros({});
    for (const auto& g : first) {
      penalty = penalty + g.pow(2).sum();
    }
    penalty.backward();
    return gradients(w);
  });
}

TEST(ShardedAutograd, Grad) {
  expect_same([](const Tensors& w) {
    return torch::autograd::grad({chain(w).sum()}, w);
  });
}

TEST(ShardedAutograd, BackwardWithInputs) {
  expect_same([](const Tensors& w) {
    chain(w).sum().backward({}, std::nullopt, false, Tensors{w[0], w[2]});
    EXPECT_FALSE(w[1].grad().defined());
    return Tensors{w[0].grad().clone(), w[2].grad().clone()};
  });
}

TEST(ShardedAutograd, BackwardFromAParameterItself) {
  expect_same([](const Tensors& w) {
    w[0][1][2].backward();
    w[1].backward(at::ones({4, 4}));
    return Tensors{w[0].grad(), w[1].grad(), w[0].clone()};
  });
}

TEST(ShardedAutograd, BackwardFromAnotherThread) {
  expect_same([](const Tensors& w) {
    const auto loss = chain(w).sum();
    std::jthread([&loss] { loss.backward(); }).join();
    return gradients(w);
  });
}

TEST(ShardedAutograd, TensorHookThatReadsAnotherParameter) {
  expect_same([](const Tensors& w) {
    const auto y = at::randn({3, 4}).mm(w[0]);
    y.register_hook([&w](const at::Tensor& g) { return g.mm(w[1]); });
    y.tanh().mm(w[2]).sum().backward();
    return Tensors{w[0].grad(), w[2].grad()};
  });
}

TEST(ShardedAutograd, ViewsKeptAcrossSteps) {
  expect_same([](const Tensors& w) {
    const auto view = w[0].detach().t();
    Tensors out;
    for (int step = 0; step < 3; ++step) {
      const torch::NoGradGuard no_grad;
      w[0].add_(1);
      out.push_back(view.mm(w[1]));
    }
    return out;
  });
}

// As register_parameter("w", x.t()) makes it. Autograd builds the history of a view again, from the
// end of a chain of views, if the version has changed meanwhile.
TEST(ShardedAutograd, AParameterMadeAsAViewIsNoneAnyMore) {
  auto base = at::randn({4, 3});
  const auto w = base.t().requires_grad_();
  const c10::weak_intrusive_ptr<c10::StorageImpl> old(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
          base.storage().unsafeGetStorageImpl()));
  base.reset();
  int hooks = 0;
  w.register_hook([&](const at::Tensor& gradient) {
    ++hooks;
    return gradient;
  });
  FakeUnitCache cache(1);
  cache.add_unit({w});
  EXPECT_TRUE(old.expired()) << "the parameter keeps its old bytes";
  EXPECT_FALSE(w.is_view());
  EXPECT_TRUE(w.is_leaf() && w.requires_grad());
  const auto view = w.t();
  w.unsafeGetTensorImpl()->bump_version();  // Publishing does this.
  at::ones({2, 4}).mm(view).sum().backward();
  ASSERT_TRUE(w.grad().defined());
  EXPECT_TRUE(w.grad().equal(at::full({3, 4}, 2.0)));
  EXPECT_EQ(hooks, 1);
}

// Saves the weight and computes its backward by hand.
struct ScaledMm : torch::autograd::Function<ScaledMm> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x.mm(w) * 2;
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::tensor_list grads) {
    const auto saved = context->get_saved_variables();
    const auto whole = sherd::touch(saved[1]);
    const auto direct = at::from_blob(
        const_cast<void*>(saved[1].const_data_ptr()), saved[1].sizes(),
        saved[1].strides());
    return {grads[0].mm(direct.t()) * 2, saved[0].t().mm(grads[0]) * 2};
  }
};

TEST(ShardedAutograd, CustomFunctionThatSavesTheWeightAndTouchesIt) {
  expect_same([](const Tensors& w) {
    auto y = ScaledMm::apply(at::randn({3, 4}), w[0]);
    y = ScaledMm::apply(y.tanh(), w[1]);
    ScaledMm::apply(y.tanh(), w[2]).sum().backward();
    return gradients(w);
  });
}

TEST(ShardedAutograd, InPlaceUpdatesBetweenSteps) {
  expect_same([](const Tensors& w) {
    for (int step = 0; step < 3; ++step) {
      for (const auto& p : w) {
        p.mutable_grad().reset();
      }
      chain(w).sum().backward();
      const torch::NoGradGuard no_grad;
      for (const auto& p : w) {
        p.sub_(p.grad(), 0.1);
      }
    }
    return Tensors{w[0].clone(), w[1].clone(), w[2].clone()};
  });
}

TEST(ShardedAutograd, TorchOptimizerOverThem) {
  expect_same([](const Tensors& w) {
    torch::optim::AdamW adam(w, torch::optim::AdamWOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      chain(w).sum().backward();
      nn::utils::clip_grad_norm_(w, 0.5);
      adam.step();
    }
    return Tensors{w[0].clone(), w[1].clone(), w[2].clone()};
  });
}

// ---- Two runtimes ----

TEST(TwoListeners, MeetInOneOperator) {
  torch::manual_seed(kSeed);
  const auto student = at::randn({4}).requires_grad_();
  const auto teacher = at::randn({4});
  auto loss = at::mse_loss(student, teacher);
  loss.backward();
  const auto expected = student.grad().clone();
  student.mutable_grad().reset();
  FakeUnitCache ours;
  FakeUnitCache theirs;
  ours.add_unit({student});
  theirs.add_unit({teacher});

  loss = at::mse_loss(student, teacher);
  loss.backward();

  EXPECT_TRUE(bit_equal(student.grad(), expected));
  EXPECT_EQ(ours.enters(), 2);
  EXPECT_EQ(theirs.enters(), 2);
  EXPECT_EQ(ours.pins() + theirs.pins(), 0);
}

// Which listener has the lower address may differ between ranks.
TEST(TwoListeners, AreToldInTheOrderOfTheArguments) {
  std::array<FakeUnitCache, 2> caches;
  std::array<at::Tensor, 2> weights;
  std::vector<std::size_t> told;
  for (std::size_t i = 0; i < 2; ++i) {
    weights[i] = at::ones({2});
    caches[i].add_unit({weights[i]});
    caches[i].on_enter = [&told, i](const char*) { told.push_back(i); };
  }
  for (const std::size_t first : {0, 1}) {
    told.clear();
    at::mse_loss(weights[first], weights[1 - first]);
    EXPECT_THAT(told, ::testing::ElementsAre(first, 1 - first));
  }
}

TEST(TwoListeners, AreEachToldOnceOfInterleavedArguments) {
  FakeUnitCache ours;
  FakeUnitCache theirs;
  Tensors w;
  for (int i = 0; i < 6; ++i) {
    w.push_back(at::ones({2}));
    (i % 2 == 0 ? ours : theirs).add_unit({w.back()});
  }
  EXPECT_EQ(at::cat(w).sum().item<float>(), 12.0F);
  EXPECT_EQ(ours.enters(), 1);
  EXPECT_EQ(theirs.enters(), 1);
  EXPECT_THAT(ours.take_log()[0].units, ::testing::ElementsAre(0, 1, 2));
}

// ---- Threads ----

TEST(ShardedThreads, ParallelForBodiesAnnounceFromTheirThreads) {
  expect_same([](const Tensors& w) {
    const auto x = at::randn({8, 4});
    Tensors rows(8);
    at::parallel_for(0, 8, 1, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = begin; i < end; ++i) {
        rows[static_cast<std::size_t>(i)] =
            w[static_cast<std::size_t>(i) % 3].mv(x[i]);
      }
    });
    const auto loss = at::stack(rows).cos().sum();
    loss.backward();
    return gradients(w);
  });
}

// Forwards and backwards through one model at once, with one unit whole, so that the threads take
// each other's bytes away.
TEST(ShardedThreads, ForwardAndBackwardThroughOneModelAtOnce) {
  expect_same([](const Tensors& w) {
    constexpr std::size_t kThreads = 4;
    constexpr int kRounds = 20;
    const auto x = at::randn({3, 4});
    std::vector<Tensors> results(kThreads);
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < kThreads; ++i) {
        threads.emplace_back([&, i] {
          for (int round = 0; round < kRounds; ++round) {
            const auto y = x.mm(w[0]).tanh().mm(w[1]).tanh().mm(w[2]);
            results[i] = torch::autograd::grad({y.cos().sum()}, w);
          }
        });
      }
    }
    Tensors all;
    for (const auto& result : results) {
      all.insert(all.end(), result.begin(), result.end());
    }
    return all;
  });
}

// ---- TorchScript ----

TEST(ShardedScript, GivesTheSameBitsAsTheWarmScript) {
  torch::manual_seed(kSeed);
  torch::jit::Module script("script");
  script.register_parameter("w", at::randn({4, 4}).requires_grad_(), false);
  script.register_parameter("b", at::randn({4}).requires_grad_(), false);
  script.define(R"(
    def forward(self, x):
        y = torch.tanh(x.mm(self.w) + self.b)
        if bool(self.b.sum() > 1000):
            y = y + 1
        for i in range(2):
            y = y.mm(self.w.t()) * self.b
        return y.sum()
  )");
  const auto x = at::randn({3, 4});
  const std::vector<at::Tensor> weights = {
      script.attr("w").toTensor(), script.attr("b").toTensor()};
  const auto run = [&] {
    for (const auto& w : weights) {
      w.mutable_grad().reset();
    }
    const auto loss = script.forward({x}).toTensor();
    loss.backward();
    return TrainingResult{
        loss.detach().clone(), weights[0].grad().clone(),
        weights[1].grad().clone()};
  };
  // The profiling executor changes the last bits between its first runs.
  for (int i = 0; i < 4; ++i) {
    (void)run();
  }
  const TrainingResult expected = run();
  FakeUnitCache cache;
  for (const auto& w : weights) {
    cache.add_unit({w});
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(bit_equal(run(), expected)) << "run " << i;
  }
  EXPECT_GT(cache.fills(0), 8);
  EXPECT_EQ(cache.pins(), 0);
}

}  // namespace
}  // namespace sherd::autograd::testing
