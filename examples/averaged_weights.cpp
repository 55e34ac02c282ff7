// SPDX-License-Identifier: Apache-2.0
//
// Keeps an exponential moving average of the weights (EMA), evaluates with it, and saves it in the
// checkpoint. On two ranks:
//   sherd run -n 2 --no-prefix -- build/release/examples/example_averaged_weights
// The model is sharded. With the argument `replicate` it is replicated.
#include <cstdio>
#include <string>
#include <sherd/sherd.h>
#include <torch/torch.h>

namespace {

torch::Tensor truth_of(const torch::Tensor& x) {
  return x.mm(torch::tensor({{1.0F}, {-2.0F}, {3.0F}, {0.5F}}));
}

double evaluate(torch::nn::Linear& model) {
  const torch::NoGradGuard no_grad;
  const auto x = torch::eye(4);
  return torch::mse_loss(model->forward(x), truth_of(x)).item<double>();
}

// `wrap` calls fully_shard() or replicate(). The rest is the same for both.
template <typename Wrap>
void train(
    const sherd::World& world, const std::string& folder, const Wrap& wrap) {
  torch::manual_seed(1);  // All ranks begin with the same values.
  torch::nn::Linear model(4, 1), loaded(4, 1);
  auto handle = wrap(*model, world);
  sherd::Sgd sgd(handle.named_parameters(), {.learning_rate = 0.1});
  sherd::WeightAverage average(handle.named_parameters(), 0.97);

  torch::manual_seed(2 + world.rank());  // Each rank has rows of its own.
  for (int step = 0; step < 400; ++step) {
    const auto x = torch::randn({8, 4});
    const auto noisy = truth_of(x) + torch::randn({8, 1});
    torch::mse_loss(model->forward(x), noisy).backward();
    sgd.step();
    sgd.zero_grad();
    average.update();
  }
  const auto of_weights = evaluate(model);
  average.swap();
  const auto of_averages = evaluate(model);
  average.swap();

  sherd::CheckpointState state;
  state.add(handle.named_parameters());
  state.add("ema", average.averages());
  sherd::CheckpointSaver(world, folder).save(400, state);

  // Another program may load the averages as the weights of its model.
  auto loaded_handle = wrap(*loaded, world);
  sherd::CheckpointState averages;
  averages.add("ema", loaded_handle.named_parameters());
  const auto report = sherd::load_checkpoint(
      world, folder + "/step-400", averages, {.strict = false});
  const bool same = report.missing.empty() && evaluate(loaded) == of_averages &&
      evaluate(model) == of_weights;
  if (world.rank() == 0) {
    std::printf(
        "squared error of the weights %.4f, of their averages %.4f, %s after "
        "loading\n",
        of_weights, of_averages, same ? "the same" : "another one");
  }
  loaded_handle.close();
  handle.close();
}

int run(const std::string& how) {
  auto world = sherd::World::from_environment();
  if (how == "replicate") {
    train(world, "runs/averages-replicated", [](auto& model, const auto& on) {
      return sherd::replicate(model, on);
    });
  } else {
    train(world, "runs/averages-sharded", [](auto& model, const auto& on) {
      return sherd::fully_shard(model, on);
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
