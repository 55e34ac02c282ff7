// SPDX-License-Identifier: Apache-2.0
//
// A backward ran before sherd's engine was installed, as after a warm-up of a
// model that is sharded later. Which engine runs first is process-wide, hence a
// program of its own.
#include <gtest/gtest.h>
#include "autograd/backward.h"

namespace sherd::autograd {
namespace {

class Counter final : public BackwardListener {
 public:
  void backward_ended(std::exception_ptr) override { ++ends; }
  int ends = 0;
};

void backward_of_depth(int depth) {
  const at::AutoGradMode grad_mode(true);  // Off in hooks.
  const auto w = at::ones({2}).requires_grad_();
  w.register_hook([depth](const at::Tensor&) {
    if (depth > 1) {
      backward_of_depth(depth - 1);
    }
  });
  w.sum().backward();
}

TEST(LateEngine, RunsBackwardsOfEveryDepth) {
  backward_of_depth(1);  // The base engine starts its threads.
  install_backward_engine();
  for (const int depth : {1, 2, 62, 130}) {
    const auto counter = std::make_shared<Counter>();
    arm(counter);
    backward_of_depth(depth);
    EXPECT_EQ(counter->ends, 1) << depth;
  }
}

}  // namespace
}  // namespace sherd::autograd
