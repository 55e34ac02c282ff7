// SPDX-License-Identifier: Apache-2.0
//
// Operators in place in checkpointed regions, and between forward and backward: right gradients, or
// an error, as without regions.
#include <gmock/gmock.h>
#include <sherd/autograd/checkpoint.h>
#include <sherd/base/error.h>
#include "autograd/testing.h"

namespace sherd::autograd::testing {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;

at::Tensor input_of_region() {
  return at::arange(18, at::kFloat).reshape({3, 6}).sin().requires_grad_();
}

std::string what_backward_says(
    const std::function<at::Tensor(const at::Tensor&)>& fn,
    const CheckpointOptions& options = {}) {
  const auto y = checkpoint(options, fn, input_of_region());
  return thrown_by([&] { y.sum().backward(); });
}

TEST(Checkpoint, T08OperatorsInPlaceOnWhatWasNotSavedAreEqualInBits) {
  const OneThread one_thread;
  const auto train = [](bool checkpointed) {
    torch::manual_seed(kSeed);
    nn::Conv2d conv(nn::Conv2dOptions(2, 3, 3));
    nn::BatchNorm2d norm(3);
    auto fn = [conv, norm](const at::Tensor& in) mutable {
      // Twice, because it updates its statistics.
      auto x = norm(norm(conv(in)).relu_());
      x.narrow(1, 0, 1).add_(1);
      return x.mul_(2).sigmoid().square();
    };
    const auto x = at::randn({2, 2, 5, 5}).requires_grad_();
    (checkpointed ? checkpoint(fn, x) : fn(x)).sum().backward();
    return std::vector<at::Tensor>{
        x.grad(), conv->weight.grad(), norm->weight.grad(), norm->bias.grad()};
  };
  EXPECT_TRUE(bit_equal(train(true), train(false)));
}

TEST(Checkpoint, T08AChangeInPlaceOfASavedTensorIsRefused) {
  const auto changed = AllOf(
      HasSubstr("a tensor of shape [3, 6] was changed"),
      HasSubstr("expected version 0, found 1"));
  for (const bool early_stop : {true, false}) {
    EXPECT_THAT(
        what_backward_says(
            [](const at::Tensor& x) {
              const auto y = x.exp();
              y.add_(1);
              return y * y;
            },
            {.early_stop = early_stop}),
        changed);
  }
  // Only the second run finds it: in the first one, that of the backward within ends early.
  EXPECT_THAT(
      what_backward_says([](const at::Tensor& x) {
        const auto y = x.exp();
        const auto z = y.square().sum();
        y.add_(1);
        return torch::autograd::grad({z}, {x}, {}, true, true)[0].exp();
      }),
      changed);
}

TEST(Checkpoint, T08AnInputChangedMeanwhileIsRefused) {
  const auto x = at::tanh(input_of_region());
  const auto y =
      checkpoint([](const at::Tensor& in) { return at::tanh(in); }, x);
  x.add_(1);
  // As without regions.
  EXPECT_THROW(y.sum().backward({}, /*retain_graph=*/true), c10::Error);
  EXPECT_THAT(
      thrown_by([&] { y.sum().backward(); }),
      HasSubstr("modified by an inplace operation"));
}

TEST(Checkpoint, T08AParameterChangedMeanwhileIsRefused) {
  nn::Linear linear(6, 6);
  const auto y = checkpoint(
      [linear](const at::Tensor& x) mutable { return linear(x); },
      input_of_region());
  {
    const at::NoGradGuard no_grad;
    linear->weight.add_(1);
  }
  EXPECT_THROW(y.sum().backward({}, /*retain_graph=*/true), Error);
  EXPECT_THAT(
      thrown_by([&] { y.sum().backward(); }),
      AllOf(
          HasSubstr("parameter of shape [6, 6]"),
          HasSubstr("expected version 1, found 2")));
}

}  // namespace
}  // namespace sherd::autograd::testing
