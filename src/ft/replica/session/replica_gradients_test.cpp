// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/replica_gradients.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/check.h"
#include "device/host_memory.h"
#include "device/stream.h"
#include "support/checking_device/checking_device.h"
#include "support/error_of.h"

namespace sherd::ft {
namespace {

using sherd::test::error_of;
using Floats = std::vector<float>;

constexpr float kMark = 1e-20F;

at::Tensor tensor_of(const Floats& values) {
  return at::tensor(values, at::kFloat);
}

Floats values_of(const at::Tensor& tensor) {
  const auto* begin = tensor.const_data_ptr<float>();
  return {begin, begin + tensor.numel()};
}

// Two slices, "a" of 3 elements and "b" of 2, each in a bucket of its own; the test brings the
// parts of a backward by hand.
class GradientsOf : public testing::Test {
 protected:
  static NamedParameters named(GradientsOf& self) {
    NamedParameters all;
    all.items.push_back({"a", self.a_});
    all.items.push_back({"b", self.b_});
    all.update_in_backward =
        [&self](const BackwardUpdate& update) -> std::shared_ptr<void> {
      auto held = std::make_shared<BackwardUpdate>(update);
      self.backward_ = held;
      self.a_.mutable_grad().reset();
      return held;
    };
    return all;
  }

  void begin() {
    given_.clear();
    gradients_.begin(
        memory_.data(), [this](int bucket) { given_.push_back(bucket); });
  }
  void bring(std::size_t index, std::int64_t at, const Floats& part) {
    const auto update = backward_.lock();
    ASSERT_NE(update, nullptr) << "nobody takes what backward brings";
    update->update(index, at, tensor_of(part));
  }

  at::Tensor a_ = at::zeros({3});
  at::Tensor b_ = at::zeros({2});
  std::weak_ptr<BackwardUpdate> backward_;
  // First b, then a, each with a mark.
  Floats memory_ = Floats(7, -1);
  std::vector<int> given_;
  ReplicaGradients gradients_{named(*this), 1};
};

TEST_F(GradientsOf, WithoutAWordAllIsGivenAtTheEnd) {
  begin();
  a_.mutable_grad() = tensor_of({1, 2, 3});
  EXPECT_TRUE(given_.empty());
  gradients_.finish();
  EXPECT_EQ(given_, (std::vector<int>{1, 0}));
  EXPECT_EQ(memory_, (Floats{0, 0, 0, 1, 2, 3, kMark}));
}

TEST_F(GradientsOf, TheLastBackwardGivesEachBucketWhenItIsThere) {
  begin();
  gradients_.last_backward();
  bring(1, 0, {7});
  EXPECT_TRUE(given_.empty());
  bring(1, 1, {8});
  EXPECT_EQ(given_, std::vector<int>{0});
  bring(0, 0, {1, 2, 3});
  EXPECT_EQ(given_, (std::vector<int>{0, 1}));
  gradients_.finish();
  EXPECT_EQ(given_, (std::vector<int>{0, 1}));
  EXPECT_EQ(memory_, (Floats{7, 8, kMark, 1, 2, 3, kMark}));
}

TEST_F(GradientsOf, TheLastBackwardAddsToThoseBeforeIt) {
  begin();
  a_.mutable_grad() = tensor_of({10, 20, 30});
  gradients_.last_backward();
  bring(0, 0, {1, 2});
  bring(0, 2, {3});
  gradients_.finish();
  EXPECT_EQ(memory_, (Floats{0, 0, 0, 11, 22, 33, kMark}));
}

TEST_F(GradientsOf, WhatTheLastBackwardHasNotTouchedStays) {
  begin();
  a_.mutable_grad() = tensor_of({10, 20, 30});
  gradients_.last_backward();
  bring(1, 0, {7, 8});
  gradients_.finish();
  EXPECT_EQ(memory_, (Floats{7, 8, kMark, 10, 20, 30, kMark}));
}

// A slice that backward cannot hand over shows its gradient as usual.
TEST_F(GradientsOf, AGradientThatIsShownInTheLastBackwardIsTaken) {
  begin();
  b_.mutable_grad() = tensor_of({1, 1});
  gradients_.last_backward();
  b_.mutable_grad() = tensor_of({5, 6});  // Summed by backward.
  bring(0, 0, {1, 2, 3});
  gradients_.finish();
  EXPECT_EQ(memory_, (Floats{5, 6, kMark, 1, 2, 3, kMark}));
}

TEST_F(GradientsOf, TheUpdateEndsWithTheStep) {
  begin();
  gradients_.last_backward();
  gradients_.finish();
  EXPECT_TRUE(backward_.expired());
  begin();
  gradients_.last_backward();
  begin();
  EXPECT_TRUE(backward_.expired()) << "the step was given up";
}

TEST_F(GradientsOf, ABackwardTooManyIsAnError) {
  begin();
  gradients_.last_backward();
  bring(0, 0, {1, 2, 3});
  const auto error = error_of([&] { bring(0, 0, {1, 2, 3}); });
  EXPECT_NE(error.find("expected one backward"), std::string::npos) << error;
}

TEST_F(GradientsOf, ABackwardThatBrokeOffIsAnError) {
  begin();
  gradients_.last_backward();
  bring(0, 0, {1, 2});
  const auto error = error_of([&] { gradients_.finish(); });
  EXPECT_NE(error.find("a: expected gradients of 3"), std::string::npos)
      << error;
}

// It brought nothing, so no part is missing.
TEST_F(GradientsOf, ABackwardThatBrokeOffBeforeAGradientCameIsAnError) {
  const auto loss_of = [](bool breaks) {
    auto y = at::ones({1}).requires_grad_() * 2;
    y.register_hook([breaks](const at::Tensor& gradient) {
      if (breaks) {
        throw std::runtime_error("broken by the test");
      }
      return gradient;
    });
    return y.sum();
  };
  begin();
  EXPECT_THROW(loss_of(true).backward(), std::runtime_error);
  EXPECT_THAT(
      error_of([&] { gradients_.finish(); }),
      testing::HasSubstr("a backward broke off"));
  begin();  // The next step has a backward of its own,
  gradients_.finish();
  begin();
  EXPECT_THROW(loss_of(true).backward(), std::runtime_error);
  loss_of(false).backward();  // and a repeated one counts.
  gradients_.finish();
}

TEST_F(GradientsOf, ASparseGradientIsGivenAsADenseOne) {
  begin();
  a_.mutable_grad() = at::sparse_coo_tensor(
      at::tensor({2, 0}).view({1, 2}).to(at::kLong), tensor_of({3, 1}), {3});
  gradients_.finish();
  EXPECT_EQ(memory_, (Floats{0, 0, 0, 1, 0, 3, kMark}));
  gradients_.show(0, memory_.data());
  gradients_.show(1, memory_.data());
  EXPECT_EQ(values_of(a_.grad()), (Floats{1, 0, 3}));
}

TEST_F(GradientsOf, ANewStepDropsWhatTheOneBeforeHasKept) {
  auto all = named(*this);
  all.whole.items.push_back({.name = "a", .shape = {3}});
  all.whole.items.push_back({.name = "of another rank", .shape = {2}});
  std::vector<std::string> dropped;
  all.drop_kept = [&](const std::vector<std::string>& names) {
    dropped = names;
  };
  ReplicaGradients gradients(all, 1);
  gradients.begin(memory_.data(), [](int) {});
  EXPECT_EQ(dropped, (std::vector<std::string>{"a", "of another rank"}));
}

TEST_F(GradientsOf, TheSumIsShownInTheLayoutsOrder) {
  begin();
  const Floats sum = {1, 2, kMark, 3, 4, 5, 2 * kMark};
  gradients_.show(0, sum.data());
  gradients_.show(1, sum.data());
  EXPECT_EQ(values_of(b_.grad()), (Floats{1, 2}));
  EXPECT_EQ(values_of(a_.grad()), (Floats{3, 4, 5}));
  gradients_.clear();
  EXPECT_FALSE(a_.grad().defined());
}

TEST_F(GradientsOf, WhatNoReplicaHasAGradientOfShowsNone) {
  begin();
  const Floats sum = {0, 0, kMark, 0, 0, 0, 0};
  gradients_.show(0, sum.data());
  gradients_.show(1, sum.data());
  EXPECT_EQ(values_of(b_.grad()), (Floats{0, 0}));
  EXPECT_FALSE(a_.grad().defined());
}

TEST(ReplicaGradients, TheSumIsShownWhereRanksSeeEachOthers) {
  const auto whole = at::zeros({2, 3});
  NamedParameters named;
  named.items.push_back({"w", at::zeros({2})});
  named.whole.items.push_back({"w", {2, 3}, 1, whole});
  ReplicaGradients gradients(named, 100);
  const Floats sum = {8, 9, kMark};
  gradients.show(0, sum.data());
  EXPECT_EQ(values_of(whole), (Floats{0, 8, 9, 0, 0, 0}));
}

TEST(ReplicaGradients, TheSumIsShownInTheOrderOfIndicesWhateverTheStrides) {
  NamedParameters named;
  named.items.push_back({"w", at::zeros({2, 3}).t()});
  ReplicaGradients gradients(named, 100);
  const Floats sum = {1, 2, 3, 4, 5, 6, kMark};
  gradients.show(0, sum.data());
  EXPECT_EQ(
      values_of(named.items[0].slice.grad().contiguous()),
      (Floats{1, 2, 3, 4, 5, 6}));
}

TEST(ReplicaGradients, NoOptimizerUpdatesInBackward) {
  NamedParameters named;
  named.items.push_back({"w", at::zeros({2})});
  named.update_in_backward =
      [](const BackwardUpdate&) -> std::shared_ptr<void> {
    throw Error(
        "[fsdp] parameter w is updated in backward by another optimizer");
  };
  const auto error = error_of([&] { ReplicaGradients gradients(named, 100); });
  EXPECT_NE(error.find("another optimizer"), std::string::npos) << error;
}

TEST(ReplicaGradients, OnlyFloats) {
  NamedParameters named;
  named.items.push_back({"w", at::zeros({2}, at::kDouble)});
  const auto error = error_of([&] { ReplicaGradients gradients(named, 100); });
  EXPECT_NE(error.find("w: expected an fp32 tensor"), std::string::npos)
      << error;
}

// ---- on a device ----

TEST(ReplicaGradients, OnlyOfOneDevice) {
  const auto device = sherd::test::checking_device();
  NamedParameters named;
  named.items.push_back({"v", at::zeros({2})});
  named.items.push_back({"w", at::zeros({2}, at::device(device))});
  const auto error = error_of([&] { ReplicaGradients gradients(named, 100); });
  EXPECT_NE(
      error.find("on one device, found v on cpu and w on " + device.str()),
      std::string::npos)
      << error;
}

void expect_floats(
    const float* found, const Floats& expected, std::string& wrong) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (found[i] != expected[i]) {
      wrong += "found " + std::to_string(found[i]) + ", expected " +
          std::to_string(expected[i]) + "; ";
    }
  }
}

// Makes two steps in a stream that is not the default one, and adds to `wrong` what is not as
// expected.
void make_two_steps_on(c10::Device device, std::string& wrong) {
  const device::CurrentStream on(device::Stream::with_high_priority(device));
  const auto numbers = at::device(device);
  NamedParameters named;
  named.items.push_back({"a", at::zeros({3}, numbers)});
  named.items.push_back({"b", at::zeros({2}, numbers)});
  ReplicaGradients gradients(named, 1);
  const auto pinned = device::empty_on_host({14}, at::kFloat, device).zero_();
  auto* mine = pinned.mutable_data_ptr<float>();
  auto* sum = mine + 7;
  for (const float step : {1.F, 2.F}) {
    gradients.begin(mine, [&](int bucket) {
      expect_floats(
          bucket == 0 ? mine : mine + 3,
          bucket == 0 ? Floats(2, step) : Floats(3, 2 * step), wrong);
    });
    named.items[0].slice.mutable_grad() = at::full({3}, 2 * step, numbers);
    named.items[1].slice.mutable_grad() = at::full({2}, step, numbers);
    gradients.last_backward();
    gradients.finish();
    std::ranges::transform(
        std::span(mine, 7), sum, [](float value) { return value + 1; });
    gradients.show(0, sum);
    gradients.show(1, sum);
    const auto update = named.items[0].slice.grad().mul(2);
    gradients.clear();
    std::fill_n(sum, 7, -1.F);  // The next sum may begin.
    expect_floats(
        update.cpu().const_data_ptr<float>(), Floats(3, 2 * (2 * step + 1)),
        wrong);
  }
}

std::string wrong_in_steps_on(c10::Device device) {
  std::string wrong;
  try {
    make_two_steps_on(device, wrong);
  } catch (const c10::Error& error) {
    wrong += error.what_without_backtrace();
  }
  for (const auto& fault : sherd::test::take_faults(device)) {
    wrong += fault;
  }
  return wrong;
}

TEST(ReplicaGradients, EveryWaitOfTheHostForADeviceIsNeeded) {
  const auto device = sherd::test::checking_device();
  int count = 0;
  {
    const sherd::test::StreamWaits waits(device);
    const auto before = sherd::test::host_synchronisations(device);
    ASSERT_EQ(wrong_in_steps_on(device), "");
    count = waits.of_host();
    EXPECT_EQ(count, 2 * (2 + 1)) << "for two buckets and a sum a step";
    EXPECT_EQ(sherd::test::host_synchronisations(device) - before, count + 2)
        << "copies to and from pinned memory wait for nothing";
  }
  for (int wait = 0; wait < count; ++wait) {
    sherd::test::StreamWaits waits(device);
    waits.leave_out_of_host(wait);
    EXPECT_NE(wrong_in_steps_on(device), "") << "without wait " << wait;
  }
}

}  // namespace
}  // namespace sherd::ft
