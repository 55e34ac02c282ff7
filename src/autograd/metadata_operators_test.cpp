// SPDX-License-Identifier: Apache-2.0
#include "autograd/metadata_operators.h"

#include <gmock/gmock.h>
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

using ::testing::HasSubstr;

struct Use {
  const char* name;
  std::function<void(const at::Tensor& w)> run;
};

// Expects each use of a fresh 4 x 4 parameter to make an announcement, or none.
void expect_announcements(const std::vector<Use>& uses, bool expected) {
  for (const auto& use : uses) {
    FakeUnitCache cache;
    const auto w = at::rand({4, 4}).requires_grad_();
    cache.add_unit({w});
    EXPECT_EQ(thrown_by([&] { use.run(w); }), "") << use.name;
    EXPECT_EQ(cache.announced() > 0, expected) << use.name;
    EXPECT_EQ(cache.pins(), 0);
  }
}

TEST(MetadataOperators, VisitNobody) {
  expect_announcements(
      {{"t", [](auto& w) { (void)w.t(); }},
       {"detach", [](auto& w) { (void)w.detach(); }},
       {"data", [](auto& w) { (void)w.data(); }},
       {"zeros_like", [](auto& w) { (void)at::zeros_like(w); }},
       {"ones_like", [](auto& w) { (void)at::ones_like(w); }},
       {"empty_like", [](auto& w) { (void)at::empty_like(w); }},
       {"full_like", [](auto& w) { (void)at::full_like(w, 3); }},
       {"rand_like", [](auto& w) { (void)at::rand_like(w); }},
       {"randn_like", [](auto& w) { (void)at::randn_like(w); }},
       {"randint_like", [](auto& w) { (void)at::randint_like(w, 3); }},
       {"new_zeros", [](auto& w) { (void)w.new_zeros({2}); }},
       {"new_empty", [](auto& w) { (void)w.new_empty({2}); }},
       {"new_full", [](auto& w) { (void)w.new_full({2}, 1); }},
       {"new_ones", [](auto& w) { (void)w.new_ones({2}); }},
       {"result_type", [](auto& w) { (void)at::result_type(w, w); }},
       {"can_cast",
        [](auto& w) { (void)at::can_cast(w.scalar_type(), at::kDouble); }},
       {"expand_as", [](auto& w) { (void)w.expand_as(w); }},
       {"expand_as of another",
        [](auto& w) { (void)at::ones({4}).expand_as(w); }},
       {"expand", [](auto& w) { (void)w.expand({2, 4, 4}); }},
       {"broadcast_to", [](auto& w) { (void)w.broadcast_to({2, 4, 4}); }},
       {"view", [](auto& w) { (void)w.view({16}); }},
       {"view_as", [](auto& w) { (void)w.view_as(w); }},
       {"view dtype", [](auto& w) { (void)w.detach().view(at::kInt); }},
       {"narrow", [](auto& w) { (void)w.narrow(0, 1, 2); }},
       {"select", [](auto& w) { (void)w[1]; }},
       {"slice", [](auto& w) { (void)w.index({at::indexing::Slice(1, 3)}); }},
       {"permute", [](auto& w) { (void)w.permute({1, 0}); }},
       {"transpose", [](auto& w) { (void)w.transpose(0, 1); }},
       {"squeeze", [](auto& w) { (void)w.squeeze(); }},
       {"unsqueeze", [](auto& w) { (void)w.unsqueeze(0); }},
       {"diagonal", [](auto& w) { (void)w.diagonal(); }},
       {"unfold", [](auto& w) { (void)w.unfold(0, 2, 1); }},
       {"movedim", [](auto& w) { (void)w.movedim(0, 1); }},
       {"mT", [](auto& w) { (void)w.mT(); }},
       {"as_strided", [](auto& w) { (void)w.as_strided({2}, {1}); }},
       {"size", [](auto& w) { (void)w.size(0); }},
       {"is_same_size", [](auto& w) { (void)w.is_same_size(w); }},
       {"is_contiguous", [](auto& w) { (void)w.is_contiguous(); }},
       {"contiguous of contiguous", [](auto& w) { (void)w.contiguous(); }},
       {"to the same dtype", [](auto& w) { (void)w.to(w.scalar_type()); }},
       {"to the same device", [](auto& w) { (void)w.to(at::kCPU); }},
       {"to the same options", [](auto& w) { (void)w.to(w.options()); }},
       {"requires_grad_", [](auto& w) { w.requires_grad_(false); }},
       {"requires_grad_ dispatched",
        [](auto& w) { (void)w.__dispatch_requires_grad_(false); }},
       {"retain_grad", [](auto& w) { w.retain_grad(); }},
       {"set_data", [](auto& w) { w.set_data(at::ones({2})); }},
       {"is_leaf", [](auto& w) { (void)w.__dispatch_is_leaf(); }},
       {"version", [](auto& w) { (void)w.__dispatch__version(); }},
       {"backward of a view",
        [](auto& w) { w.t().backward(at::ones({4, 4})); }}},
      false);
}

// LibTorch refuses their results once the parameter has another version, so what is due has to be
// published before them.
TEST(MetadataOperators, ThatMakeSeveralViewsVisitWithGradientsOnly) {
  const std::vector<Use> uses = {
      {"chunk", [](auto& w) { (void)w.chunk(2); }},
      {"split", [](auto& w) { (void)w.split(2); }},
      {"split sizes", [](auto& w) { (void)w.split({1, 3}); }},
      {"unbind", [](auto& w) { (void)w.unbind(); }},
      {"hsplit", [](auto& w) { (void)w.hsplit(2); }},
      {"vsplit", [](auto& w) { (void)w.vsplit(2); }}};
  expect_announcements(uses, true);
  const at::NoGradGuard no_grad;
  expect_announcements(uses, false);
}

TEST(OperatorsThatMayCopy, Visit) {
  expect_announcements(
      {{"reshape of non-contiguous", [](auto& w) { (void)w.t().reshape(16); }},
       {"contiguous of non-contiguous",
        [](auto& w) { (void)w.t().contiguous(); }},
       {"to other dtype", [](auto& w) { (void)w.to(at::kDouble); }},
       {"to a copy", [](auto& w) { (void)w.to(w.scalar_type(), false, true); }},
       {"to another memory format",
        [](auto& w) {
          (void)w.unsqueeze(0).unsqueeze(0).to(
              w.scalar_type(), false, false, at::MemoryFormat::ChannelsLast);
        }},
       {"clone", [](auto& w) { (void)w.clone(); }},
       {"flatten of non-contiguous", [](auto& w) { (void)w.t().flatten(); }},
       {"item", [](auto& w) { (void)w[0][0].item(); }},
       {"equal", [](auto& w) { (void)at::equal(w, w); }},
       {"is_nonzero", [](auto& w) { (void)w[0][0].is_nonzero(); }},
       {"index", [](auto& w) { (void)w.index({at::tensor({1, 0})}); }},
       {"bernoulli", [](auto& w) { (void)at::bernoulli(w); }},
       {"masked_select",
        [](auto& w) { (void)w.masked_select(at::ones({4, 4}, at::kBool)); }}},
      true);
}

// Overloads that have the name of a metadata operator but read or write.
TEST(OperatorsThatMayCopy, IncludeOverloadsWithOtherTensors) {
  expect_announcements(
      {{"zeros_like.out",
        [](auto& w) {
          const torch::NoGradGuard no_grad;
          auto out = w.detach();
          at::zeros_like_out(out, at::ones({4, 4}));
        }},
       {"full_like.out",
        [](auto& w) {
          auto out = w.detach();
          at::full_like_out(out, at::ones({4, 4}), 7);
        }},
       {"randn_like.out",
        [](auto& w) {
          auto out = w.detach();
          at::randn_like_out(out, at::ones({4, 4}));
        }}},
      true);
}

TEST(OperatorsThatMayCopy, IncludeNarrowByATensor) {
  FakeUnitCache cache;
  const auto start = at::scalar_tensor(2, at::kLong);
  cache.add_unit({start});
  EXPECT_EQ(at::arange(6).narrow(0, start, 2)[0].item<int>(), 2);
  EXPECT_EQ(cache.announced(), 1);
}

TEST(OperatorsThatMayCopy, IncludeRandintBelowATensor) {
  const auto op =
      c10::Dispatcher::singleton().findSchema({"aten::randint_like", "Tensor"});
  if (!op) {
    return;  // It is newer than the oldest version of LibTorch that we support.
  }
  EXPECT_FALSE(uses_metadata_only(*op));
}

TEST(MetadataOperators, AllExistInThisLibTorch) {
  auto& dispatcher = c10::Dispatcher::singleton();
  std::set<std::string> known;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (dispatcher.findSchema(name)) {
      known.insert(name.name);
    }
  }
  for (const auto name : metadata_operators()) {
    EXPECT_TRUE(known.contains("aten::" + std::string(name))) << name;
  }
}

// Only `self` may be a tensor whose bytes are not needed; nothing is written.
TEST(MetadataOperators, WriteNothing) {
  auto& dispatcher = c10::Dispatcher::singleton();
  int found = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !uses_metadata_only(*op)) {
      continue;
    }
    ++found;
    const bool flag_only =
        name.name == "aten::requires_grad_" || name.name == "aten::retain_grad";
    EXPECT_TRUE(flag_only || !op->schema().is_mutable()) << op->schema();
    EXPECT_FALSE(name.overload_name.find("out") != std::string::npos)
        << op->schema();
  }
  EXPECT_GT(found, 60);
}

}  // namespace
}  // namespace sherd::autograd::testing
