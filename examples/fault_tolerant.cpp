// SPDX-License-Identifier: Apache-2.0
//
// A small network on a table of real numbers, as sharded replicas that may die:
//   sherd run --fault-tolerant --replicas 3 --samples-per-replica 32 --
//       build/release/examples/example_fault_tolerant
// End any of its processes with kill -9: the others continue, and it comes back. The table is
// Friedman's first (Multivariate Adaptive Regression Splines, 1991).
#include <cstdio>
#include <vector>
#include <sherd/ft/replica_session.h>
#include <sherd/sherd.h>
#include <torch/torch.h>

namespace {

constexpr std::int64_t kRows = 4096;
constexpr std::int64_t kSteps = 2000;

struct Table {
  torch::Tensor columns;  // [kRows, 10]
  torch::Tensor target;   // [kRows, 1]
};

Table make_table() {
  const auto x = torch::rand({kRows, 10});
  const auto column = [&](int i) { return x.select(1, i); };
  const auto y = 10 * torch::sin(M_PI * column(0) * column(1)) +
      20 * (column(2) - 0.5).square() + 10 * column(3) + 5 * column(4);
  return {x, (y + torch::randn({kRows})).unsqueeze(1)};
}

// The order of samples is endless: the rows repeat, well mixed.
torch::Tensor rows_of(const std::vector<sherd::ft::SampleSpan>& samples) {
  std::vector<std::int64_t> rows;
  for (const auto& span : samples) {
    for (auto sample = span.begin; sample < span.end; ++sample) {
      rows.push_back(sample * 1009 % kRows);
    }
  }
  return torch::tensor(rows);
}

int train() {
  torch::manual_seed(1991);  // The same table and first values everywhere.
  const auto table = make_table();
  torch::nn::Sequential model(
      torch::nn::Linear(10, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
      torch::nn::ReLU(), torch::nn::Linear(64, 1));
  auto world = sherd::World::from_environment();  // The ranks of this replica.
  auto fsdp = sherd::fully_shard(*model, world);
  auto adamw = sherd::AdamW(fsdp.named_parameters(), {.learning_rate = 1e-2});
  sherd::CheckpointState state;  // Everything that a step changes.
  state.add(fsdp.named_parameters());
  state.add("adamw", adamw, fsdp.named_parameters());

  const auto options = sherd::ft::SessionOptions::from_environment();
  const bool tells = options.replica == 0 && world.rank() == 0;
  sherd::ft::ReplicaSession session(
      world, fsdp.named_parameters(), state,
      [&](std::int64_t) { adamw.step(); }, options);
  while (const auto step = session.begin_step()) {
    if (step->step > kSteps) {
      break;
    }
    if (!step->samples.empty()) {  // Otherwise it follows the others.
      const auto rows = rows_of(step->samples);
      const auto error = torch::mse_loss(
          model->forward(table.columns.index_select(0, rows)),
          table.target.index_select(0, rows));
      session.last_backward();
      error.backward();
      if (tells && step->step % 400 == 0) {
        std::printf(
            "step %4lld of %d replicas, squared error %.2f\n",
            static_cast<long long>(step->step), step->replicas,
            error.item<double>());
      }
    }
    session.finish_step();
  }
  session.close();
  // A replica that comes after the end, or is asked to leave, has not trained it.
  if (session.step() < kSteps) {
    fsdp.close();
    world.close();
    return 0;
  }

  const torch::NoGradGuard no_grad;
  const auto all = torch::mse_loss(model->forward(table.columns), table.target);
  if (tells) {
    std::printf(
        "explained: %.3f of the variance\n",
        1.0 - (all / table.target.var()).item<double>());
  }
  fsdp.close();
  world.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return sherd::run_main(argc, argv, train); }
