// SPDX-License-Identifier: Apache-2.0
#include "autograd/gradient_hook.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

namespace nn = torch::nn;
namespace impl = torch::autograd::impl;
using Tensors = std::vector<at::Tensor>;

// Takes the gradients of some parameters, adopted or plain.
struct Taken {
  explicit Taken(const Tensors& parameters)
      : of(parameters.size()), parameters_(parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      set_gradient_hook(parameters[i], [this, i](at::Tensor gradient) {
        of[i].push_back(std::move(gradient));
      });
    }
  }
  ~Taken() {
    for (const auto& p : parameters_) {
      remove_gradient_hook(p);
    }
  }
  Taken(const Taken&) = delete;
  Taken& operator=(const Taken&) = delete;

  std::vector<Tensors> of;  // Per parameter, in order of arrival.

 private:
  const Tensors parameters_;
};

at::Tensor parameter() { return at::randn({4, 4}).requires_grad_(); }
at::Tensor input() { return at::randn({3, 4}); }

// ---- How often ----

TEST(GradientHook, FiresOncePerBackwardHoweverOftenTheWeightIsUsed) {
  const std::vector<std::function<at::Tensor(const at::Tensor&)>> uses = {
      [](const at::Tensor& w) { return input().mm(w); },
      [](const at::Tensor& w) { return input().mm(w).mm(w).mm(w); },
      [](const at::Tensor& w) { return input().mm(w.t()).mm(w); },
      [](const at::Tensor& w) {
        return at::linear(at::embedding(w, at::tensor({0, 2, 2})), w);
      },
      [](const at::Tensor& w) {  // A sparse and a dense use.
        return at::linear(
            at::embedding(w, at::tensor({0, 2}), -1, false, true), w);
      },
      [](const at::Tensor& w) { return input().mm(w) + w.detach().sum(); },
  };
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const auto w = parameter();
    Taken taken({w});
    uses[i](w).cos().sum().backward();
    ASSERT_EQ(taken.of[0].size(), 1U) << "use " << i;
    EXPECT_TRUE(taken.of[0][0].defined());
    EXPECT_FALSE(w.grad().defined());  // Taken out.
    uses[i](w).cos().sum().backward();
    EXPECT_EQ(taken.of[0].size(), 2U) << "use " << i;
  }
}

TEST(GradientHook, DoesNotFireForAutogradGradOrDetachedUse) {
  const auto w = parameter();
  Taken taken({w});
  (void)torch::autograd::grad({w.cos().sum()}, {w});
  const auto x = input().requires_grad_();
  x.mm(w.detach()).sum().backward();
  EXPECT_TRUE(taken.of[0].empty());
}

TEST(GradientHook, FiresOnceUnderCreateGraph) {
  const auto w = parameter();
  Taken taken({w});
  w.pow(3).sum().backward({}, std::nullopt, /*create_graph=*/true);
  EXPECT_EQ(taken.of[0].size(), 1U);
}

TEST(GradientHook, FiresInEachOfTwoBackwardsThroughARetainedGraph) {
  const auto w = parameter();
  Taken taken({w});
  const auto loss = w.pow(2).sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  ASSERT_EQ(taken.of[0].size(), 2U);
  EXPECT_TRUE(bit_equal(taken.of[0][0], taken.of[0][1]));
}

// A function that gives its weight no gradient.
struct NoGradient : torch::autograd::Function<NoGradient> {
  static at::Tensor forward(
      torch::autograd::AutogradContext*, const at::Tensor& w) {
    return w.sum();
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext*, torch::autograd::tensor_list) {
    return {at::Tensor()};
  }
};

TEST(GradientHook, FiresWithAnUndefinedGradient) {
  const auto w = parameter();
  Taken taken({w});
  NoGradient::apply(w).backward();
  ASSERT_EQ(taken.of[0].size(), 1U);
  EXPECT_FALSE(taken.of[0][0].defined());
}

TEST(PreAccumulationHook, IsCalledForAnUndefinedGradientToo) {
  const auto w = parameter();
  int calls = 0;
  const auto hook =
      add_pre_accumulation_hook(w, [&calls](at::Tensor&) { ++calls; });
  NoGradient::apply(w).backward();
  w.sum().backward();
  EXPECT_EQ(calls, 2);
}

TEST(PreAccumulationHook, WaitsOnAFrozenParameterUntilItIsThawed) {
  const auto w = at::ones({2});
  int calls = 0;
  const auto hook =
      add_pre_accumulation_hook(w, [&calls](at::Tensor&) { ++calls; });
  EXPECT_FALSE(w.requires_grad());
  w.requires_grad_();
  w.sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(PreAccumulationHook, FollowsAParameterToAnotherNode) {
  const auto w = parameter();
  int calls = 0;
  auto hook = add_pre_accumulation_hook(w, [&calls](at::Tensor&) { ++calls; });
  const auto before = impl::try_get_grad_accumulator(w);
  {
    const at::NoGradGuard no_grad;
    w.set_(at::ones({4, 4}));  // As torch::load() does.
  }
  w.sum().backward();
  EXPECT_NE(impl::grad_accumulator(w), before);
  EXPECT_EQ(calls, 1);
  hook.reset();
  w.sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(GradientHook, TakesAnOlderGradientTogetherWithTheNew) {
  const auto w = at::ones({2}).requires_grad_();
  w.mutable_grad() = at::full({2}, 10.0F);
  Taken taken({w});
  w.sum().backward();
  EXPECT_TRUE(at::equal(taken.of[0][0], at::full({2}, 11.0F)));
}

TEST(GradientHook, SurvivesFreezingAndThawing) {
  const auto w = parameter();
  Taken taken({w});
  w.requires_grad_(false);
  w.requires_grad_(true);
  w.sum().backward();
  EXPECT_EQ(taken.of[0].size(), 1U);
}

TEST(GradientHook, SurvivesAdoptionBeforeAndAfter) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto w = at::ones({2}).requires_grad_();
    w.sum().backward();  // An accumulator is cached.
    w.mutable_grad().reset();
    Taken taken({w});
    FakeUnitCache cache;
    cache.add_unit({w}, dtype);
    w.sum().backward();
    ASSERT_EQ(taken.of[0].size(), 1U);
    EXPECT_EQ(taken.of[0][0].scalar_type(), dtype);
    EXPECT_FALSE(w.grad().defined());
  }
}

TEST(GradientHook, ErrorReachesTheCallerAndTheNextBackwardWorks) {
  const auto w = parameter();
  int calls = 0;
  set_gradient_hook(w, [&calls](const at::Tensor&) {
    if (++calls == 1) {
      throw std::runtime_error("slot is gone");
    }
  });
  EXPECT_EQ(thrown_by([&] { w.sum().backward(); }), "slot is gone");
  w.sum().backward();
  EXPECT_EQ(calls, 2);
}

// ---- A hook that was there before ----

class Noting final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit Noting(std::vector<std::string>* notes) : notes_(notes) {}
  void operator()(const at::Tensor& parameter) override {
    notes_->push_back(parameter.grad().defined() ? "old+" : "old");
    if (parameter.grad().defined()) {
      parameter.mutable_grad() = parameter.grad() * 2;
    }
  }

 private:
  std::vector<std::string>* const notes_;
};

TEST(GradientHookChain, RunsTheOldOneFirstAndTakesWhatItLeft) {
  std::vector<std::string> notes;
  const auto w = at::ones({2}).requires_grad_();
  impl::set_post_acc_grad_hooks(w, std::make_unique<Noting>(&notes));
  at::Tensor got;
  set_gradient_hook(w, [&](at::Tensor gradient) {
    notes.push_back("ours");
    got = std::move(gradient);
  });
  w.sum().backward();
  EXPECT_EQ(notes, (std::vector<std::string>{"old+", "ours"}));
  EXPECT_TRUE(at::equal(got, at::full({2}, 2.0F)));
}

TEST(GradientHookChain, ALaterOneReplacesOursUntilItIsSetAgain) {
  std::vector<std::string> notes;
  const auto w = at::ones({2}).requires_grad_();
  const auto set_ours = [&] {
    set_gradient_hook(w, [&](const at::Tensor&) { notes.push_back("ours"); });
  };
  set_ours();
  impl::set_post_acc_grad_hooks(w, std::make_unique<Noting>(&notes));
  EXPECT_FALSE(has_gradient_hook(w));
  set_ours();
  EXPECT_TRUE(has_gradient_hook(w));
  w.sum().backward();
  EXPECT_EQ(notes, (std::vector<std::string>{"old+", "ours"}));
}

TEST(GradientHookChain, RemovalRestoresTheOldOne) {
  std::vector<std::string> notes;
  const auto w = at::ones({2}).requires_grad_();
  impl::set_post_acc_grad_hooks(w, std::make_unique<Noting>(&notes));
  set_gradient_hook(w, [&](const at::Tensor&) { notes.push_back("ours"); });
  remove_gradient_hook(w);
  w.sum().backward();
  EXPECT_EQ(notes, (std::vector<std::string>{"old+"}));
  EXPECT_TRUE(w.grad().defined());
}

TEST(GradientHookChain, RemovalWithoutAnOldOneLeavesNone) {
  const auto w = at::ones({2}).requires_grad_();
  set_gradient_hook(w, [](const at::Tensor&) { FAIL(); });
  remove_gradient_hook(w);
  remove_gradient_hook(w);
  EXPECT_EQ(impl::post_acc_grad_hooks(w), nullptr);
  w.sum().backward();
  EXPECT_TRUE(w.grad().defined());
}

TEST(GradientHookChain, RemovalLeavesAStrangersHookAlone) {
  std::vector<std::string> notes;
  const auto w = at::ones({2}).requires_grad_();
  impl::set_post_acc_grad_hooks(w, std::make_unique<Noting>(&notes));
  remove_gradient_hook(w);
  w.sum().backward();
  EXPECT_EQ(notes.size(), 1U);
}

TEST(GradientHookChain, RemovalOnATensorThatNeverHadOneDoesNothing) {
  remove_gradient_hook(at::ones({2}).requires_grad_());
  remove_gradient_hook(at::ones({2}));
}

TEST(GradientHookChain, CanBeSetOnAFrozenParameterAndFiresOnceItIsThawed) {
  const auto w = at::ones({2});
  Taken taken({w});
  w.requires_grad_();
  w.sum().backward();
  EXPECT_EQ(taken.of[0].size(), 1U);
}

// ---- What arrives ----

TEST(TakenGradient, ArrivesSparseOnlyWhenAllUsesAre) {
  const auto ids = at::tensor({0, 2, 2});
  const auto sparse_use = [&](const at::Tensor& w) {
    return at::embedding(w, ids, -1, false, /*sparse=*/true).cos().sum();
  };
  const auto w = parameter();
  Taken taken({w});
  sparse_use(w).backward();
  (sparse_use(w) + sparse_use(w)).backward();
  (sparse_use(w) + w.cos().sum()).backward();
  ASSERT_EQ(taken.of[0].size(), 3U);
  EXPECT_TRUE(taken.of[0][0].is_sparse());
  EXPECT_TRUE(taken.of[0][1].is_sparse());
  EXPECT_FALSE(taken.of[0][2].is_sparse());
}

// Nothing else holds the gradient or its bytes: autograd made no copy, or one that only we hold.
void expect_unshared(
    const char* name,
    const Tensors& parameters,
    const std::function<at::Tensor()>& output) {
  Taken taken(parameters);
  output().cos().sum().backward();
  for (const auto& gradients : taken.of) {
    ASSERT_EQ(gradients.size(), 1U) << name;
    EXPECT_EQ(gradients[0].use_count(), 1U) << name;
    EXPECT_EQ(gradients[0].storage().use_count(), 1U) << name;
  }
}

template <typename Layer>
void expect_unshared(const char* name, Layer layer, const at::Tensor& x) {
  expect_unshared(
      name, layer->parameters(), [layer, x]() mutable { return layer(x); });
}

TEST(TakenGradient, SharesItsStorageWithNobody) {
  expect_unshared("linear 2-d", nn::Linear(4, 5), input());
  expect_unshared("linear 3-d", nn::Linear(4, 5), at::randn({2, 3, 4}));
  expect_unshared("embedding", nn::Embedding(6, 4), at::tensor({1, 1, 3}));
  expect_unshared(
      "conv2d", nn::Conv2d(nn::Conv2dOptions(2, 3, 3)),
      at::randn({1, 2, 6, 6}));
  expect_unshared(
      "layer norm", nn::LayerNorm(nn::LayerNormOptions({4})), input());
  nn::LSTM lstm(nn::LSTMOptions(4, 4));
  const auto x = at::randn({3, 2, 4});
  expect_unshared(
      "lstm", lstm->parameters(), [&] { return std::get<0>(lstm(x)); });
  const auto a = parameter();
  const auto b = parameter();
  expect_unshared("mm", {a}, [&] { return input().mm(a); });
  expect_unshared("mm of t", {a}, [&] { return input().mm(a.t()); });
  expect_unshared("twice", {a}, [&] { return input().mm(a).mm(a); });
  expect_unshared("one gradient for two", {a, b}, [&] { return a + b; });
  expect_unshared("expanded", {a}, [&] { return a.sum(); });
  expect_unshared("chunks", {a}, [&] {
    const auto parts = a.chunk(2);
    return parts[0] * parts[1];
  });
}

// cat returns parts of its own gradient, and autograd takes those without a copy.
TEST(TakenGradient, OfConcatenatedParametersLiesApartInOneStorage) {
  const auto a = parameter();
  const auto b = parameter();
  Taken taken({a, b});
  at::cat({a, b}).cos().sum().backward();
  const auto& first = taken.of[0].at(0);
  const auto& second = taken.of[1].at(0);
  EXPECT_EQ(first.use_count(), 1U);
  EXPECT_TRUE(first.is_alias_of(second));
  EXPECT_EQ(first.storage_offset() + first.numel(), second.storage_offset());
}

// The gradient reaches the callback with the bytes in which it was computed, without a copy.
TEST(TakenGradient, IsTheTensorThatTheNodeMade) {
  const auto w = parameter();
  const void* born = nullptr;
  w.register_hook([&born](const at::Tensor& g) { born = g.const_data_ptr(); });
  Taken taken({w});
  const auto x = input();
  x.mm(w).cos().sum().backward();
  EXPECT_EQ(taken.of[0][0].const_data_ptr(), born);
}

TEST(TakenGradient, OfAnAdoptedWeightIsStolenToo) {
  const auto w = parameter();
  FakeUnitCache cache;
  cache.add_unit({w});
  const void* born = nullptr;
  w.register_hook([&born](const at::Tensor& g) { born = g.const_data_ptr(); });
  Taken taken({w});
  at::linear(input(), w).cos().sum().backward();
  EXPECT_EQ(taken.of[0][0].const_data_ptr(), born);
  EXPECT_EQ(tag_of(taken.of[0][0]), nullptr);  // No key, no managed bytes.
}

}  // namespace
}  // namespace sherd::autograd::testing
