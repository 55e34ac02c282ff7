// SPDX-License-Identifier: Apache-2.0
#include "autograd/param_key.h"

#include <sstream>
#include <gmock/gmock.h>
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor parameter(at::IntArrayRef sizes) {
  return at::randn(sizes).requires_grad_();
}

// Whether an operator on `t` reaches the listener.
bool announces(FakeUnitCache& cache, const at::Tensor& t) {
  (void)cache.take_log();
  (void)t.sum();
  return cache.announced() == 1;
}

// ---- Adoption ----

TEST(Adoption, KeepsTheObjectItsLeafAndItsHooksAndVisitsNobody) {
  FakeUnitCache cache;
  auto w = parameter({3});
  const auto* object = w.unsafeGetTensorImpl();
  int hooks = 0;
  w.register_hook([&hooks](const at::Tensor&) { ++hooks; });

  cache.add_unit({w});

  EXPECT_EQ(cache.enters(), 0);
  EXPECT_EQ(w.unsafeGetTensorImpl(), object);
  EXPECT_TRUE(w.is_leaf());
  EXPECT_TRUE(w.requires_grad());
  w.sum().backward();
  EXPECT_EQ(hooks, 1);
  EXPECT_TRUE(w.grad().defined());
}

TEST(Adoption, TwiceMovesTheParameterToTheNewUnit) {
  FakeUnitCache cache;
  const auto w = at::tensor({1.0F, 2.0F}).requires_grad_();
  cache.add_unit({w});
  cache.add_unit({w});
  EXPECT_FALSE(is_adopted(w, cache.storage(0)));
  EXPECT_TRUE(is_adopted(w, cache.storage(1)));
  EXPECT_EQ(w.sum().item<float>(), 3.0F);
}

TEST(Adoption, UnderInferenceModeLeavesTheParameterTrainable) {
  FakeUnitCache cache;
  const auto w = parameter({3});
  {
    const c10::InferenceMode inference;
    cache.add_unit({w});
  }
  EXPECT_FALSE(w.is_inference());
  w.sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), at::ones({3})));
}

TEST(Adoption, UnderInferenceModeOrNoGradComputesTheSame) {
  const auto x = at::randn({2, 3});
  const auto w = parameter({4, 3});
  const auto expected = at::linear(x, w).detach();
  FakeUnitCache cache;
  cache.add_unit({w});
  const c10::InferenceMode inference;
  EXPECT_TRUE(bit_equal(at::linear(x, w), expected));
}

TEST(Adoption, ToBf16KeepsTheObjectAndGivesBf16Gradients) {
  FakeUnitCache cache;
  torch::nn::Linear linear(4, 3);
  const auto w = linear->weight;
  linear(at::ones({2, 4})).sum().backward();  // Caches the accumulators.
  for (const auto& p : linear->parameters()) {
    p.mutable_grad().reset();
  }

  cache.add_unit(linear->parameters(), at::kBFloat16);

  EXPECT_TRUE(linear->weight.is_same(w));
  EXPECT_EQ(w.scalar_type(), at::kBFloat16);
  linear(at::ones({2, 4}, at::kBFloat16)).sum().backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(linear->bias.grad().scalar_type(), at::kBFloat16);
}

TEST(Adoption, LeavesAGraphBuiltBeforeItToItsOldBytes) {
  FakeUnitCache cache;
  const auto w = parameter({4, 4});
  const auto before = w.detach().clone();
  const auto x = at::randn({2, 4}).requires_grad_();
  const auto loss = at::linear(x, w).sum();
  cache.add_unit({w}, at::kBFloat16);

  loss.backward();

  EXPECT_TRUE(bit_equal(x.grad(), at::ones({2, 4}).mm(before)));
  // The old graph keeps its dtype.
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
}

TEST(Release, GivesAPlainTensorBack) {
  FakeUnitCache cache;
  const auto w = parameter({3});
  cache.add_unit({w});
  release(w, at::ones({3}));
  EXPECT_FALSE(announces(cache, w));
  EXPECT_FALSE(is_adopted(w, cache.storage(0)));
  w.sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), at::ones({3})));
}

TEST(Installation, CanBeRepeated) {
  install_param_key();
  install_param_key();
}

// ---- Who carries the key ----

TEST(Key, GoesToEveryViewAndShallowCopy) {
  FakeUnitCache cache;
  const auto w = parameter({4, 4});
  cache.add_unit({w});
  const std::vector<at::Tensor> heirs = {
      w.t(),
      w.view({16}),
      w.narrow(0, 1, 2),
      w[1],
      w.detach(),
      w.data(),
      w.variable_data(),
      w.tensor_data(),
      w.to(at::kFloat),
      w.expand({2, 4, 4}),
      w.unsqueeze(0),
      w.chunk(2)[1],
      w.reshape({2, 8}),
      w.contiguous(),
      w.index({at::indexing::Slice(0, 2)}),
      w.alias(),
      w.diagonal(),
      w.as_strided({2}, {1}),
      w.detach().t().detach()};
  for (std::size_t i = 0; i < heirs.size(); ++i) {
    EXPECT_TRUE(announces(cache, heirs[i])) << "heir " << i;
  }
}

TEST(Key, GoesToNoCopy) {
  FakeUnitCache cache;
  const auto w = parameter({4, 4});
  cache.add_unit({w});
  const std::vector<at::Tensor> others = {
      w.clone(),
      at::zeros_like(w),
      at::empty_like(w),
      at::rand_like(w),
      w.to(at::kDouble),
      w.new_zeros({2}),
      w + 1,
      w.t().contiguous(),
      w.expand({2, 4, 4}).reshape({32}),
      w.detach().clone()};
  for (std::size_t i = 0; i < others.size(); ++i) {
    EXPECT_FALSE(announces(cache, others[i])) << "other " << i;
  }
}

TEST(Key, IsNotOnAViewTakenBeforeAdoption) {
  FakeUnitCache cache;
  const auto w = at::ones({4}).requires_grad_();
  const auto old = w.detach().view({2, 2});
  cache.add_unit({w});
  EXPECT_FALSE(announces(cache, old));
  EXPECT_EQ(old.sum().item<float>(), 4.0F);  // It has its own, older bytes.
  EXPECT_NE(tag_of(w), nullptr);
  EXPECT_EQ(tag_of(old), nullptr);
}

// ---- How it is lost, and who says so ----

TEST(KeyLost, ByModuleToOtherDtypeAndNotByTheSame) {
  FakeUnitCache cache;
  torch::nn::Linear linear(2, 2);
  adopt_module(*linear, cache, UnitGrouping::kOneUnit);
  linear->to(at::kFloat);
  EXPECT_TRUE(is_adopted(linear->weight, cache.storage(0)));
  linear->to(at::kDouble);
  EXPECT_FALSE(is_adopted(linear->weight, cache.storage(0)));
  EXPECT_FALSE(announces(cache, linear->weight));
}

TEST(KeyLost, BySetData) {
  FakeUnitCache cache;
  const auto w = parameter({2});
  cache.add_unit({w});
  w.set_data(at::ones({2}));
  EXPECT_FALSE(is_adopted(w, cache.storage(0)));
}

TEST(KeyLost, ByVectorToParameters) {
  FakeUnitCache cache;
  torch::nn::Linear linear(2, 2);
  adopt_module(*linear, cache, UnitGrouping::kOneUnit);
  torch::nn::utils::vector_to_parameters(at::ones({6}), linear->parameters());
  EXPECT_FALSE(is_adopted(linear->weight, cache.storage(0)));
}

TEST(KeyLost, NotByTorchLoadWhichIsAnnouncedAsAWriteAndFoundByTheStorage) {
  torch::nn::Linear linear(2, 2);
  std::stringstream file;
  torch::save(linear, file);
  FakeUnitCache cache;
  adopt_module(*linear, cache, UnitGrouping::kOneUnit);

  torch::load(linear, file);

  const auto log = cache.take_log();
  EXPECT_TRUE(std::any_of(log.begin(), log.end(), [](const auto& a) {
    return a.name == "aten::set_" && a.written;
  }));
  EXPECT_FALSE(is_adopted(linear->weight, cache.storage(0)));
  EXPECT_EQ(tag_of(linear->weight), nullptr);
}

TEST(Saving, OfAnEmptiedModuleThrowsTheSentence) {
  FakeUnitCache cache;
  torch::nn::Linear linear(2, 2);
  adopt_module(*linear, cache, UnitGrouping::kOneUnit);
  std::stringstream file;
  EXPECT_THAT(
      thrown_by([&] { torch::save(linear, file); }),
      HasSubstr(FakeUnitCache::sentence(0)));
}

TEST(Saving, OfAWholeModuleIsCorrect) {
  FakeUnitCache cache(1);
  torch::nn::Linear linear(2, 2);
  const auto before = linear->weight.detach().clone();
  adopt_module(*linear, cache, UnitGrouping::kOneUnit);
  (void)linear(at::ones({1, 2}));
  ASSERT_TRUE(cache.whole(0));
  std::stringstream file;
  torch::save(linear, file);
  torch::nn::Linear loaded(2, 2);
  torch::load(loaded, file);
  EXPECT_TRUE(bit_equal(loaded->weight, before));
}

TEST(Cloning, AModuleGivesPlainParameters) {
  FakeUnitCache cache;
  torch::nn::Linear linear(2, 2);
  const auto before = linear->weight.detach().clone();
  adopt_module(*linear, cache, UnitGrouping::kOneUnit);
  const auto copy =
      std::dynamic_pointer_cast<torch::nn::LinearImpl>(linear->clone());
  EXPECT_FALSE(announces(cache, copy->weight));
  EXPECT_TRUE(bit_equal(copy->weight, before));
}

// ---- Ordinary use ----

TEST(OrdinaryUse, PrintingItemAndIndexingWork) {
  FakeUnitCache cache;
  const auto w = at::tensor({1.0F, 2.5F}).requires_grad_();
  cache.add_unit({w});
  std::ostringstream out;
  out << w;
  EXPECT_THAT(out.str(), HasSubstr("2.5"));
  EXPECT_EQ(w[1].item<float>(), 2.5F);
  EXPECT_EQ(w.max().item<float>(), 2.5F);
  EXPECT_EQ(w.index({at::tensor({1})}).item<float>(), 2.5F);
  EXPECT_TRUE(at::equal(w, w.clone()));
  EXPECT_TRUE(at::allclose(w, w));
}

TEST(OrdinaryUse, OneOperatorIsOneAnnouncementOfAllItsParameters) {
  FakeUnitCache cache;
  const auto w = parameter({2, 2});
  const auto b = parameter({2});
  cache.add_unit({w});
  cache.add_unit({b});
  (void)at::linear(at::ones({1, 2}), w, b);
  const auto log = cache.take_log();
  ASSERT_EQ(log.size(), 1U);
  EXPECT_EQ(log[0].name, "aten::linear");
  EXPECT_THAT(log[0].units, ElementsAre(0, 1));
  EXPECT_FALSE(log[0].written);
}

TEST(OrdinaryUse, OperatorsOnOtherTensorsAnnounceNothing) {
  FakeUnitCache cache;
  cache.add_unit({parameter({2})});
  (void)at::ones({2}).requires_grad_().add(1).sum();
  EXPECT_EQ(cache.enters(), 0);
}

// ---- Errors of the listener ----

TEST(Refusal, ReachesTheCallerOfForwardAndNothingStaysPinned) {
  FakeUnitCache cache;
  const auto w = parameter({2});
  cache.add_unit({w});
  cache.refuse_after(0, "deadline passed");
  EXPECT_EQ(thrown_by([&] { (void)w.sum(); }), "deadline passed");
  EXPECT_EQ(cache.leaves(), 0);
  cache.refuse_nothing();
  EXPECT_EQ(thrown_by([&] { (void)w.sum(); }), "");
}

TEST(Refusal, ReachesTheCallerOfBackward) {
  FakeUnitCache cache;
  const auto w = parameter({2, 2});
  cache.add_unit({w});
  const auto x = parameter({2, 2});
  const auto loss = x.mm(w).sum();
  cache.refuse_after(0, "peer 3 is lost");
  EXPECT_EQ(thrown_by([&] { loss.backward(); }), "peer 3 is lost");
  EXPECT_EQ(cache.pins(), 0);
  EXPECT_EQ(cache.enters(), cache.leaves());
}

TEST(Refusal, BySecondListenerLeavesTheFirst) {
  FakeUnitCache one;
  FakeUnitCache two;
  const auto a = parameter({2});
  const auto b = parameter({2});
  one.add_unit({a});
  two.add_unit({b});
  for (FakeUnitCache* refusing : {&one, &two}) {
    refusing->refuse_after(0, "no");
    EXPECT_EQ(thrown_by([&] { (void)at::add(a, b); }), "no");
    refusing->refuse_nothing();
    EXPECT_EQ(one.pins() + two.pins(), 0);
    EXPECT_EQ(one.enters(), one.leaves());
    EXPECT_EQ(two.enters(), two.leaves());
  }
}

TEST(OperatorError, StillLeaves) {
  FakeUnitCache cache;
  const auto w = parameter({2, 2});
  cache.add_unit({w});
  EXPECT_NE(thrown_by([&] { (void)w.mm(at::ones({3, 3})); }), "");
  EXPECT_EQ(cache.enters(), 1);
  EXPECT_EQ(cache.leaves(), 1);
  EXPECT_EQ(cache.pins(), 0);
}

}  // namespace
}  // namespace sherd::autograd::testing
