// SPDX-License-Identifier: Apache-2.0
//
// Trains a GPT whose gradients are sent as matrices of rank 2, by PowerSGD, and prints what that
// saves. On two ranks:
//   sherd run -n 2 --no-prefix -- build/release/examples/example_power_sgd
#include <cstdio>
#include <sherd/sherd.h>
#include <torch/torch.h>

namespace {

int train() {
  auto world = sherd::World::from_environment();
  sherd::models::Gpt model(sherd::models::GptConfig{
      .layers = 2, .width = 64, .heads = 4, .sequence = 32, .vocabulary = 64});
  auto ddp = sherd::replicate(
      *model, world, {.hook = sherd::power_sgd({.rank = 2, .start_step = 5})});
  sherd::AdamW adamw(ddp.named_parameters(), {.learning_rate = 3e-3});

  torch::manual_seed(world.rank());
  double loss = 0;
  for (int step = 0; step < 60; ++step) {
    // Each row counts upwards from a number of its own.
    const auto ids =
        (torch::randint(64, {8, 1}) + torch::arange(33)).remainder(64);
    const auto now = model->loss(ids.narrow(1, 0, 32), ids.narrow(1, 1, 32));
    now.backward();
    adamw.step();
    adamw.zero_grad();
    loss = now.item<double>();
    if (world.rank() == 0 && step % 20 == 0) {
      std::printf("step %2d, loss %.3f\n", step, loss);
    }
  }
  const auto report = ddp.report();
  if (world.rank() == 0 && world.size() > 1) {
    std::printf(
        "loss %.3f; gradients travelled in %.1f times fewer bytes\n", loss,
        static_cast<double>(report.gradient_bytes) /
            static_cast<double>(report.hook_bytes));
  }
  ddp.close();
  world.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return sherd::run_main(argc, argv, train); }
