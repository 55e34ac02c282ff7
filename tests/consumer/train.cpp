// SPDX-License-Identifier: Apache-2.0
//
// Trains a small net, once in this program and once in a plugin that it loads:
//   consumer PLUGIN
// Prints the losses and exits with 0 when both learnt the same.
#include <dlfcn.h>
#include <cstdio>
#include <exception>
#include <sherd/sherd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

namespace {

struct Losses {
  double first = 0;
  double last = 0;
  bool operator==(const Losses&) const = default;
};

}  // namespace

// By its C name, which dlsym() finds.
extern "C" void train(const sherd::World& world, Losses* losses) {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Linear(32, 1));
  const auto inputs = torch::randn({16, 8});
  const auto targets = inputs.sum(1, /*keepdim=*/true);
  auto fsdp = sherd::fully_shard(*net, world);
  auto adamw = sherd::AdamW(fsdp.named_parameters(), {.learning_rate = 0.05});
  for (int step = 0; step < 20; ++step) {
    const auto loss = (net->forward(inputs) - targets).square().mean();
    loss.backward();
    adamw.step();
    adamw.zero_grad();
    losses->last = loss.item<double>();
    losses->first = step == 0 ? losses->last : losses->first;
  }
  fsdp.close();
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: consumer PLUGIN\n");
    return 2;
  }
  try {
    auto world = sherd::World::from_environment();
    Losses here;
    train(world, &here);
    void* plugin = ::dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (plugin == nullptr) {
      std::fprintf(stderr, "consumer: %s\n", ::dlerror());
      return 1;
    }
    Losses there;
    reinterpret_cast<decltype(&train)>(::dlsym(plugin, "train"))(world, &there);
    world.close();
    std::printf(
        "loss %.9g to %.9g, in the plugin %.9g to %.9g\n", here.first,
        here.last, there.first, there.last);
    return here == there && here.last < here.first / 10 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "consumer: %s\n", error.what());
    return 1;
  }
}
