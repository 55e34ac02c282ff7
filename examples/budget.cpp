// SPDX-License-Identifier: Apache-2.0
//
// Trains the same small GPT under several byte budgets and prints how many bytes each gathers in a
// step: the table of docs/guide/cache.md. On two ranks:
//   sherd run -n 2 --no-prefix -- build/release/examples/example_budget
#include <cstdio>
#include <sherd/sherd.h>
#include <torch/torch.h>

namespace {

sherd::ShardReport train(
    const sherd::World& world, sherd::FullyShardOptions options) {
  // Ranks that share memory need no budget.
  options.exchange = sherd::ExchangeKind::kCollective;
  auto model = sherd::models::Gpt(
      sherd::models::GptConfig{.layers = 8, .width = 64, .heads = 4});
  auto fsdp = sherd::fully_shard(*model, world, options);
  auto adamw = sherd::AdamW(fsdp.named_parameters());
  const auto ids = torch::randint(256, {2, 65});
  for (int step = 0; step < 4; ++step) {  // The first one is only recorded.
    model->loss(ids.narrow(1, 0, 64), ids.narrow(1, 1, 64)).backward();
    adamw.step();
    adamw.zero_grad();
  }
  const auto report = fsdp.report();
  fsdp.close();
  return report;
}

double kib(std::int64_t bytes) { return static_cast<double>(bytes) / 1024; }

void print(const char* name, const sherd::ShardReport& report) {
  std::printf(
      "| %s | %.0f KiB | %.0f KiB | %lld | %.0f KiB | %.0f KiB | %.0f KiB |\n",
      name, kib(report.budget_bytes), kib(report.unsharded_bytes_peak),
      static_cast<long long>(report.plan.gathers),
      kib(report.plan.gathered_bytes), kib(report.plan.lower_bound_bytes),
      kib(report.plan.tenth_more_saves_bytes));
}

int compare_budgets() {
  auto world = sherd::World::from_environment();
  torch::manual_seed(world.rank());
  const auto whole = train(world, {.strategy = sherd::Strategy::kShardGradOp});
  const auto m = whole.budget_bytes;
  const auto half = train(world, {.budget_bytes = m / 2});
  const auto most = train(world, {.budget_bytes = m * 3 / 4});
  const auto least = train(world, {.strategy = sherd::Strategy::kFullShard});
  if (world.rank() == 0) {
    print("`kFullShard`", least);
    print("half of all bytes", half);
    print("three quarters", most);
    print("`kShardGradOp`: all", whole);
  }
  world.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return sherd::run_main(argc, argv, compare_budgets);
}
