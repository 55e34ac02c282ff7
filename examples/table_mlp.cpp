// SPDX-License-Identifier: Apache-2.0
//
// Trains a small network on a table of real numbers, as replicas:
//   sherd run -n 2 --no-prefix -- build/release/examples/example_table_mlp
// The table is Friedman's first (Multivariate Adaptive Regression Splines, 1991): five of ten
// columns determine the eleventh, up to noise of variance 1.
#include <cstdio>
#include <sherd/sherd.h>
#include <torch/torch.h>

namespace {

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kBatch = 64;  // All ranks together.

struct Table {
  torch::Tensor columns;  // [kRows, 10]
  torch::Tensor target;   // [kRows, 1]
};

Table make_table() {
  torch::manual_seed(1991);  // The same on every rank.
  const auto x = torch::rand({kRows, 10});
  const auto column = [&](int i) { return x.select(1, i); };
  const auto y = 10 * torch::sin(M_PI * column(0) * column(1)) +
      20 * (column(2) - 0.5).square() + 10 * column(3) + 5 * column(4);
  return {x, (y + torch::randn({kRows})).unsqueeze(1)};
}

int train() {
  auto world = sherd::World::from_environment();
  const auto table = make_table();
  torch::nn::Sequential model(
      torch::nn::Linear(10, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
      torch::nn::ReLU(), torch::nn::Linear(64, 1));
  auto ddp = sherd::replicate(*model, world);  // All get rank 0's values.
  torch::optim::AdamW adamw(model->parameters(), 1e-2);

  const auto mine = kBatch / world.size();
  double loss = 0;
  for (int epoch = 1; epoch <= 20; ++epoch) {
    const auto order = torch::randperm(kRows);  // Seeded: equal on all ranks.
    for (std::int64_t row = 0; row < kRows; row += kBatch) {
      const auto rows = order.narrow(0, row + world.rank() * mine, mine);
      const auto error = torch::mse_loss(
          model->forward(table.columns.index_select(0, rows)),
          table.target.index_select(0, rows));
      error.backward();
      adamw.step();
      adamw.zero_grad();
      loss = error.item<double>();
    }
    if (world.rank() == 0 && epoch % 4 == 0) {
      std::printf(
          "epoch %2d, squared error of the last batch %.2f\n", epoch, loss);
    }
  }
  const torch::NoGradGuard no_grad;
  const auto all = torch::mse_loss(model->forward(table.columns), table.target);
  if (world.rank() == 0) {
    std::printf(
        "explained: %.3f of the variance\n",
        1.0 - (all / table.target.var()).item<double>());
  }
  ddp.close();
  world.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return sherd::run_main(argc, argv, train); }
