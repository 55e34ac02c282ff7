// SPDX-License-Identifier: Apache-2.0
//
// An operator that writes a parameter says so in its schema, and the listener is told.
#include <gmock/gmock.h>
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Write {
  const char* name;
  std::function<void(at::Tensor w)> run;
};

const std::vector<Write>& writes() {
  static const auto ones = [] { return at::ones({4, 4}); };
  static const std::vector<Write> all = {
      {"copy_", [](at::Tensor w) { w.copy_(ones()); }},
      {"add_", [](at::Tensor w) { w.add_(1); }},
      {"sub_", [](at::Tensor w) { w -= 1; }},
      {"mul_", [](at::Tensor w) { w.mul_(2); }},
      {"normal_", [](at::Tensor w) { w.normal_(); }},
      {"uniform_", [](at::Tensor w) { w.uniform_(); }},
      {"zero_", [](at::Tensor w) { w.zero_(); }},
      {"fill_", [](at::Tensor w) { w.fill_(2); }},
      {"kaiming_uniform_",
       [](at::Tensor w) { torch::nn::init::kaiming_uniform_(w); }},
      {"orthogonal_", [](at::Tensor w) { torch::nn::init::orthogonal_(w); }},
      {"xavier_normal_",
       [](at::Tensor w) { torch::nn::init::xavier_normal_(w); }},
      {"constant_", [](at::Tensor w) { torch::nn::init::constant_(w, 1); }},
      {"index_put_",
       [](at::Tensor w) { w.index_put_({at::tensor({1})}, at::ones({4})); }},
      {"index_fill_",
       [](at::Tensor w) { w.index_fill_(0, at::tensor({1}, at::kLong), 2); }},
      {"add.out", [](at::Tensor w) { at::add_out(w, ones(), ones()); }},
      {"mm.out", [](at::Tensor w) { at::mm_out(w, ones(), ones()); }},
      {"_foreach_add_",
       [](at::Tensor w) { at::_foreach_add_({ones(), w}, 1); }},
      {"_foreach_copy_",
       [](at::Tensor w) { at::_foreach_copy_({w}, {ones()}); }},
      {"_foreach_zero_", [](at::Tensor w) { at::_foreach_zero_({w}); }},
      {"_fused_adamw_",
       [](at::Tensor w) {
         const auto step = at::ones({});
         at::_fused_adamw_(
             {w}, {ones()}, {at::zeros({4, 4})}, {at::zeros({4, 4})}, {},
             {step}, 0.1, 0.9, 0.99, 0.01, 1e-8, false, false);
       }},
      {"of a view", [](at::Tensor w) { w.t()[1].add_(1); }},
      {"through data", [](at::Tensor w) { w.data().add_(1); }},
      {"through detach", [](at::Tensor w) { w.detach().zero_(); }},
      {"embedding_renorm_",
       [](at::Tensor w) {
         at::embedding_renorm_(w, at::tensor({0, 1}), 0.1, 2);
       }},
      // These change no bytes, but the tensor itself.
      {"detach_", [](at::Tensor w) { w.detach_(); }},
      {"t_", [](at::Tensor w) { w.t_(); }},
      {"squeeze_", [](at::Tensor w) { w.squeeze_(); }},
      {"set_", [](at::Tensor w) { w.set_(ones()); }},
  };
  return all;
}

// The announcements for one write to a fresh parameter.
std::vector<Announcement> announced_by(const Write& write) {
  torch::manual_seed(kSeed);
  FakeUnitCache cache;
  const auto w = at::rand({4, 4}).requires_grad_();
  cache.add_unit({w});
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(thrown_by([&] { write.run(w); }), "") << write.name;
  return cache.take_log();
}

TEST(Write, IsFlaggedForEveryWayToWrite) {
  for (const auto& write : writes()) {
    const auto log = announced_by(write);
    EXPECT_TRUE(std::any_of(log.begin(), log.end(), [](const auto& a) {
      return a.written;
    })) << write.name;
  }
}

TEST(Write, UnderInferenceModeIsFlagged) {
  FakeUnitCache cache;
  const auto w = at::rand({4, 4}).requires_grad_();
  cache.add_unit({w});
  const c10::InferenceMode inference;
  w.detach().add_(1);
  EXPECT_TRUE(cache.take_log().back().written);
}

TEST(Write, OfResetParametersIsFlaggedForEachParameter) {
  FakeUnitCache cache;
  torch::nn::Linear linear(3, 3);
  adopt_module(*linear, cache, UnitGrouping::kPerParameter);
  linear->reset_parameters();
  std::set<int> written;
  for (const auto& a : cache.take_log()) {
    if (a.written) {
      written.insert(a.units.begin(), a.units.end());
    }
  }
  EXPECT_EQ(written, (std::set<int>{0, 1}));
}

TEST(Write, OfAnEmbeddingWithMaxNormIsFlaggedInForward) {
  FakeUnitCache cache;
  torch::nn::Embedding layer(torch::nn::EmbeddingOptions(5, 3).max_norm(0.1));
  adopt_module(*layer, cache, UnitGrouping::kOneUnit);
  (void)layer(at::tensor({1, 2}));
  const auto log = cache.take_log();
  EXPECT_TRUE(std::any_of(
      log.begin(), log.end(), [](const auto& a) { return a.written; }));
}

TEST(Write, OfTheOtherArgumentDoesNotFlagTheParameter) {
  FakeUnitCache cache;
  const auto w = at::rand({4, 4}).requires_grad_();
  cache.add_unit({w});
  const torch::NoGradGuard no_grad;
  auto out = at::zeros({4, 4});
  out.copy_(w);
  out.add_(w);
  at::mm_out(out, w, w.t());
  at::_foreach_add_(Tensors{out}, Tensors{w});
  for (const auto& a : cache.take_log()) {
    EXPECT_FALSE(a.written) << a.name;
  }
}

TEST(Write, LandsInTheParametersBytes) {
  FakeUnitCache cache;
  const auto w = at::zeros({4}).requires_grad_();
  cache.add_unit({w});
  {
    const torch::NoGradGuard no_grad;
    w.add_(2);
    w.view({2, 2})[1].mul_(3);
  }
  EXPECT_TRUE(at::equal(w, at::tensor({2.0F, 2.0F, 6.0F, 6.0F})));
}

TEST(Write, BumpsTheVersionLikeLibTorch) {
  FakeUnitCache cache;
  const auto w = at::zeros({4}).requires_grad_();
  cache.add_unit({w});
  const auto before = w._version();
  const torch::NoGradGuard no_grad;
  w.add_(2);
  EXPECT_EQ(w._version(), before + 1);
}

}  // namespace
}  // namespace sherd::autograd::testing
