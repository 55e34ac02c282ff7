// SPDX-License-Identifier: Apache-2.0
#include "train/jobs.h"

#include <algorithm>
#include <utility>
#include <vector>
#include "base/resident_memory.h"
#include "terminal_text.h"
#include "train/step_meter.h"
#include "train/trainer.h"
#include "train/training_plan.h"

namespace sherd::tools {
namespace {

// The first step creates the optimizer's state. With a memory limit, the next four are measured,
// and the sixth records what the seventh follows.
constexpr std::int64_t kSteps = 2;
constexpr std::int64_t kStepsWithLimit = 7;

// For each figure, the most of any rank.
std::vector<double> most_of_ranks(
    const World& world, const std::vector<double>& figures) {
  auto most = figures;
  for (const auto& row : world.all_gather(figures)) {
    std::transform(
        most.begin(), most.end(), row.begin(), most.begin(),
        [](double a, double b) { return std::max(a, b); });
  }
  return most;
}

}  // namespace

int print_plan(Trainer& trainer) {
  const auto& config = trainer.config();
  TrainingPlan plan{
      .config = config,
      .parameters = trainer.parameter_count(),
      .corpus = trainer.corpus().path(),
      .corpus_tokens = trainer.corpus().tokens(),
      .ranks = trainer.world().size(),
      .steps_measured = config.memory.count > 0 ? kStepsWithLimit : kSteps};
  RankMetrics last;
  const auto before_bytes = resident_bytes();
  for (std::int64_t step = 0; step < plan.steps_measured; ++step) {
    const StepMeter meter;
    (void)trainer.forward_backward(
        trainer.first_sample(step), trainer.batches().next());
    StepMetrics record{.step = step + 1, .lr = trainer.learning_rate(step)};
    trainer.engine().update(record);
    last = meter.measure();
  }
  const auto state = trainer.engine().state_bytes();
  const auto report = trainer.engine().report();
  const auto most = most_of_ranks(
      trainer.world(),
      {last.step_s, static_cast<double>(before_bytes),
       static_cast<double>(resident_bytes_peak()),
       static_cast<double>(state.parameters),
       static_cast<double>(state.gradients),
       static_cast<double>(state.optimizer),
       static_cast<double>(report.unsharded_bytes_peak),
       static_cast<double>(report.gradient_slot_bytes_peak)});
  const auto bytes = [&](std::size_t figure) {
    return static_cast<std::int64_t>(most[figure]);
  };
  plan.step_s = most[0];
  plan.before_bytes = bytes(1);
  plan.resident_bytes = bytes(2);
  plan.parameter_bytes = bytes(3);
  plan.gradient_bytes = bytes(4);
  plan.optimizer_bytes = bytes(5);
  plan.unit_bytes = bytes(6);
  plan.slot_bytes = bytes(7);
  if (config.memory.count > 0) {
    plan.limits = suggest(report);
  }
  if (trainer.leads()) {
    print_at_once(plan_text(plan));
  }
  trainer.close();
  return 0;
}

}  // namespace sherd::tools
