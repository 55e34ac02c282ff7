// SPDX-License-Identifier: Apache-2.0
//
// Trains one model on ranks with different numbers of inputs:
//   sherd run -n 3 --no-prefix -- build/release/examples/example_uneven_inputs
#include <cstdio>
#include <sherd/sherd.h>
#include <torch/torch.h>

namespace {

int train() {
  auto world = sherd::World::from_environment();
  torch::nn::Linear model(4, 1);
  auto ddp = sherd::replicate(*model, world);
  torch::optim::SGD sgd(model->parameters(), 0.1);

  torch::manual_seed(world.rank());
  const auto truth = torch::tensor({{1.0F, -2.0F, 3.0F, 0.5F}});
  const int inputs = 100 + 50 * world.rank();  // The last rank has the most.
  auto join = ddp.join();
  for (int i = 0; i < inputs; ++i) {
    const auto x = torch::randn({8, 4});
    torch::mse_loss(model->forward(x), x.mm(truth.t())).backward();
    sgd.step();
    sgd.zero_grad();
  }
  std::printf("rank %d has no more inputs after %d\n", world.rank(), inputs);
  join.finish();  // Takes part with zeros until no rank has inputs.

  const auto off = (model->weight - truth).abs().max().item<double>();
  std::printf(
      "rank %d: %lld backwards, weights are off by %.4f\n", world.rank(),
      static_cast<long long>(ddp.report().backwards), off);
  ddp.close();
  world.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return sherd::run_main(argc, argv, train); }
