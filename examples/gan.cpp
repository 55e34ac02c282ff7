// SPDX-License-Identifier: Apache-2.0
//
// Trains a GAN, which is two models with an optimizer each: the generator learns to place points on
// a circle, and the discriminator learns to tell them from real points. On two ranks:
//   sherd run -n 2 --no-prefix -- build/release/examples/example_gan
// The models are sharded. With the argument `replicate` they are replicated.
#include <cmath>
#include <cstdio>
#include <string>
#include <sherd/sherd.h>
#include <torch/torch.h>

namespace {

constexpr std::int64_t kRows = 128;  // Of each rank.

torch::nn::Sequential network(std::int64_t inputs, std::int64_t outputs) {
  const auto leaky = torch::nn::LeakyReLUOptions().negative_slope(0.2);
  return torch::nn::Sequential(
      torch::nn::Linear(inputs, 64), torch::nn::LeakyReLU(leaky),
      torch::nn::Linear(64, 64), torch::nn::LeakyReLU(leaky),
      torch::nn::Linear(64, outputs));
}

torch::Tensor real_points() {
  const auto angle = torch::rand({kRows, 1}) * (2 * M_PI);
  return 2 * torch::cat({angle.cos(), angle.sin()}, 1) +
      0.1 * torch::randn({kRows, 2});
}

torch::Tensor loss_of(const torch::Tensor& scores, double wanted) {
  return torch::binary_cross_entropy_with_logits(
      scores, torch::full_like(scores, wanted));
}

void set_requires_grad(torch::nn::Sequential& model, bool flag) {
  for (auto& parameter : model->parameters()) {
    parameter.requires_grad_(flag);
  }
}

// `wrap` calls fully_shard() or replicate(). The rest is the same for both.
template <typename Wrap>
void train(const sherd::World& world, const Wrap& wrap) {
  torch::manual_seed(1);  // All ranks begin with the same values.
  auto generator = network(4, 2);
  auto discriminator = network(2, 1);
  auto generator_handle = wrap(*generator, world);
  auto discriminator_handle = wrap(*discriminator, world);
  const sherd::AdamWOptions options = {.learning_rate = 2e-3, .beta1 = 0.5};
  sherd::AdamW of_generator(generator_handle.named_parameters(), options);
  sherd::AdamW of_discriminator(
      discriminator_handle.named_parameters(), options);

  torch::manual_seed(2 + world.rank());  // Each rank has points of its own.
  for (int step = 0; step < 600; ++step) {
    const auto made = generator->forward(torch::randn({kRows, 4}));
    {
      // This backward has no gradients of the generator and reduces none.
      const auto local = generator_handle.no_sync();
      (loss_of(discriminator->forward(real_points()), 1) +
       loss_of(discriminator->forward(made.detach()), 0))
          .backward();
    }
    of_discriminator.step();
    of_discriminator.zero_grad();

    // This one passes through the discriminator and leaves no gradients there.
    set_requires_grad(discriminator, false);
    {
      const auto local = discriminator_handle.no_sync();
      loss_of(discriminator->forward(made), 1).backward();
    }
    set_requires_grad(discriminator, true);
    of_generator.step();
    of_generator.zero_grad();
  }

  const torch::NoGradGuard no_grad;
  const auto radius = generator->forward(torch::randn({1000, 4})).norm(2, 1);
  if (world.rank() == 0) {
    std::printf(
        "made points have radius %.2f +- %.2f, real ones 2.00 +- 0.10\n",
        radius.mean().item<double>(), radius.std().item<double>());
  }
  discriminator_handle.close();
  generator_handle.close();
}

int run(const std::string& how) {
  auto world = sherd::World::from_environment();
  if (how == "replicate") {
    train(world, [](auto& module, const auto& ranks) {
      return sherd::replicate(module, ranks);
    });
  } else {
    train(world, [](auto& module, const auto& ranks) {
      return sherd::fully_shard(module, ranks);
    });
  }
  world.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return sherd::run_main(
      argc, argv, [&] { return run(argc > 1 ? argv[1] : ""); });
}
