// SPDX-License-Identifier: Apache-2.0
#include "fsdp/idle_optimizer_detector.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

namespace sherd::fsdp {
namespace {

using ::testing::HasSubstr;

std::vector<at::Tensor> slices() {
  std::vector<at::Tensor> slices;
  for (const auto dtype :
       {torch::kFloat, torch::kBFloat16, torch::kDouble, torch::kHalf}) {
    slices.push_back(torch::zeros({3000}, dtype).set_requires_grad(true));
  }
  slices.push_back(torch::zeros({10}));  // Frozen.
  return slices;
}

TEST(IdleOptimizerDetector, SeesAnyUpdateOfAWholeSlice) {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto all = slices();
    IdleOptimizerDetector idle;
    idle.remember(all);
    EXPECT_FALSE(idle.changed(all));
    at::Tensor(all[i]).add_(0.001);
    EXPECT_TRUE(idle.changed(all)) << "slice " << i;
    idle.remember(all);
    EXPECT_FALSE(idle.changed(all));
  }
}

TEST(IdleOptimizerDetector, SeesUpdatesThatMoveNoVersionCounter) {
  const auto all = slices();
  IdleOptimizerDetector idle;
  idle.remember(all);
  all[0].data().add_(1);
  EXPECT_TRUE(idle.changed(all));
}

TEST(IdleOptimizerDetector, FrozenSlicesDoNotCount) {
  const auto all = slices();
  IdleOptimizerDetector idle;
  idle.remember(all);
  at::Tensor(all[4]).add_(1);
  EXPECT_FALSE(idle.changed(all));
}

TEST(IdleOptimizerDetector, SmallSlicesAreSeenInFull) {
  for (std::int64_t i = 0; i < 500; i += 99) {
    const std::vector<at::Tensor> all{
        torch::zeros({500}).set_requires_grad(true)};
    IdleOptimizerDetector idle;
    idle.remember(all);
    all[0].data()[i].add_(1);
    EXPECT_TRUE(idle.changed(all)) << "element " << i;
  }
}

TEST(IdleOptimizerDetector, ExpectsAChangeOnlyAfterAGradientThatIsNotZero) {
  const auto all = slices();
  IdleOptimizerDetector idle;
  idle.note_gradients(all);
  EXPECT_FALSE(idle.change_due());  // None at all.
  all[1].mutable_grad() = torch::zeros_like(all[1]);
  idle.note_gradients(all);
  EXPECT_FALSE(idle.change_due());
  all[1].mutable_grad().fill_(1e-3);
  idle.note_gradients(all);
  EXPECT_TRUE(idle.change_due());
  all[1].mutable_grad().reset();
  idle.note_gradients(all);
  EXPECT_TRUE(idle.change_due());  // It stays due.
}

TEST(IdleOptimizerDetector, WarnsOnceWithTheRemedy) {
  IdleOptimizerDetector idle;
  ::testing::internal::CaptureStderr();
  idle.warn(64);
  idle.warn(128);
  const auto lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, HasSubstr("no parameter has changed in 64 backwards"));
  EXPECT_THAT(lines, HasSubstr("fsdp.parameters()"));
  EXPECT_THAT(lines, HasSubstr("if one should have, it was made over other"));
  EXPECT_THAT(lines, HasSubstr("If gradients accumulate over more backwards"));
  EXPECT_THAT(lines, ::testing::Not(HasSubstr("128")));
}

}  // namespace
}  // namespace sherd::fsdp
