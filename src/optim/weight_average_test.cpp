// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/weight_average.h>

#include <cmath>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <sherd/base/error.h>
#include <torch/torch.h>
#include "support/error_of.h"

namespace sherd {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct OneSlice {
  OneSlice() {
    parameters.items = {{"w", slice}};
    parameters.before_load = [this] { calls.emplace_back("before_load"); };
    parameters.publish_loaded = [this] {
      calls.emplace_back("publish_loaded");
    };
  }

  at::Tensor slice = torch::zeros({2}).requires_grad_();
  std::vector<std::string> calls;
  NamedParameters parameters;
};

void set(const at::Tensor& slice, float value) {
  const torch::NoGradGuard no_grad;
  slice.fill_(value);
}

TEST(WeightAverage, KeepsTheShareThatIsGivenAndBeginsAgain) {
  OneSlice model;
  WeightAverage average(model.parameters, 0.75);
  set(model.slice, 4);
  average.update();
  const auto averages = average.averages();
  ASSERT_EQ(averages.items.size(), 1U);
  EXPECT_EQ(averages.items[0].name, "w");
  EXPECT_TRUE(averages.items[0].slice.equal(torch::full({2}, 1.0F)));
  average.update();
  EXPECT_TRUE(averages.items[0].slice.equal(torch::full({2}, 1.75F)));
  average.reset();
  EXPECT_TRUE(averages.items[0].slice.equal(torch::full({2}, 4.0F)));
  EXPECT_THAT(model.calls, ElementsAre());
}

TEST(WeightAverage, TakesOverFrozenIntegers) {
  NamedParameters parameters;
  parameters.items = {{"index", torch::zeros({2}, torch::kInt8)}};
  WeightAverage average(parameters, 0.75);
  parameters.items[0].slice.fill_(4);
  average.update();
  EXPECT_TRUE(average.averages().items[0].slice.equal(
      torch::full({2}, 4, torch::kInt8)));
}

TEST(WeightAverage, SwapShowsTheAveragesAndASecondOneUndoesIt) {
  OneSlice model;
  WeightAverage average(model.parameters, 0.5);
  set(model.slice, 2);
  average.update();
  average.swap();
  EXPECT_TRUE(model.slice.equal(torch::full({2}, 1.0F)));
  EXPECT_THAT(model.calls, ElementsAre("before_load", "publish_loaded"));
  for (const auto& error :
       {error_of([&] { average.update(); }), error_of([&] { average.reset(); }),
        error_of([&] { (void)average.averages(); })}) {
    EXPECT_THAT(error, HasSubstr("while the model has the averages"));
  }
  average.swap();
  EXPECT_TRUE(model.slice.equal(torch::full({2}, 2.0F)));
  EXPECT_TRUE(average.averages().items[0].slice.equal(torch::full({2}, 1.0F)));
}

TEST(WeightAverage, RefusesADecayThatIsNoShare) {
  for (const double decay : {-0.1, 1.0, std::nan("")}) {
    EXPECT_THAT(
        error_of([&] { WeightAverage(OneSlice().parameters, decay); }),
        HasSubstr("expected a decay in [0, 1), found"));
  }
}

}  // namespace
}  // namespace sherd
