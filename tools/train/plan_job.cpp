// SPDX-License-Identifier: Apache-2.0
#include "train/train_command.h"

#include <algorithm>
#include <vector>
#include "base/host.h"
#include "terminal_text.h"
#include "tool_main.h"
#include "train/step_meter.h"
#include "train/trainer.h"
#include "train/training_plan.h"

namespace sherd::tools {
namespace {

// The first step creates the optimizer's state. With a memory limit, the next four are measured,
// and the sixth records what the seventh follows.
constexpr std::int64_t kSteps = 2;
constexpr std::int64_t kStepsWithLimit = 7;

// A figure of this rank, in bytes, and where the plan has the most of any rank.
struct Figure {
  std::int64_t TrainingPlan::* most;
  std::int64_t here;
};

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
  const std::vector<Figure> figures = {
      {&TrainingPlan::before_bytes, before_bytes},
      {&TrainingPlan::resident_bytes, resident_bytes_peak()},
      {&TrainingPlan::parameter_bytes, state.parameters},
      {&TrainingPlan::gradient_bytes, state.gradients},
      {&TrainingPlan::optimizer_bytes, state.optimizer},
      {&TrainingPlan::unit_bytes, report.unsharded_bytes_peak},
      {&TrainingPlan::slot_bytes, report.gradient_slot_bytes_peak}};
  std::vector<double> here = {last.step_s};
  for (const auto& figure : figures) {
    here.push_back(static_cast<double>(figure.here));
  }
  for (const auto& row : trainer.world().all_gather(here)) {
    plan.step_s = std::max(plan.step_s, row[0]);
    for (std::size_t i = 0; i < figures.size(); ++i) {
      auto& most = plan.*figures[i].most;
      most = std::max(most, static_cast<std::int64_t>(row[i + 1]));
    }
  }
  if (config.memory.count > 0) {
    plan.limits = suggest(report);
  }
  if (trainer.leads()) {
    print_at_once(plan_text(plan));
    expect_printed();
  }
  trainer.close();
  return 0;
}

}  // namespace sherd::tools
