// SPDX-License-Identifier: Apache-2.0
#include "train/training_plan.h"

#include <algorithm>
#include <cinttypes>
#include "format_text.h"
#include "train/progress_display.h"

namespace sherd::tools {
namespace {

std::string memory_line(const char* kind, std::int64_t bytes) {
  return format("         %-22s %s\n", kind, format_memory(bytes).c_str());
}

std::string memory_text(const TrainingPlan& plan) {
  std::string text = "memory of a rank\n";
  text += memory_line("parameters", plan.parameter_bytes);
  text += memory_line("gradients", plan.gradient_bytes);
  text += memory_line("optimizer", plan.optimizer_bytes);
  if (plan.ranks > 1) {
    text += memory_line("whole units", plan.unit_bytes);
    text += memory_line("gradients on the way", plan.slot_bytes);
  }
  // Parameters exist before the first step; everything else comes with it.
  const auto known = plan.before_bytes + plan.gradient_bytes +
      plan.optimizer_bytes + plan.unit_bytes + plan.slot_bytes;
  text += memory_line(
      "activations", std::max<std::int64_t>(plan.resident_bytes - known, 0));
  text += memory_line(
      "libraries and data",
      std::max<std::int64_t>(plan.before_bytes - plan.parameter_bytes, 0));
  text += memory_line("all, measured", plan.resident_bytes);
  return text;
}

}  // namespace

std::string plan_text(const TrainingPlan& plan) {
  const auto& config = plan.config;
  const auto tokens = static_cast<double>(config.batch * config.seq);
  const auto steps = static_cast<double>(config.steps);
  const auto passes = plan.corpus_tokens > 0
      ? tokens * steps / static_cast<double>(plan.corpus_tokens)
      : 0.0;
  auto text = format(
      "model  %s, %" PRId64 " layers of width %" PRId64 ", %" PRId64
      " parameters\n",
      config.model.c_str(), config.layers, config.width, plan.parameters);
  text += "data   " + plan.corpus;
  text += format(
      ": %" PRId64 " tokens; all steps together use %.2f epochs of them\n",
      plan.corpus_tokens, passes);
  text += format(
      "ranks  %s, %s; a step has %" PRId64 " x %" PRId64 " tokens\n",
      counted(plan.ranks, "rank").c_str(), config.strategy.c_str(),
      config.batch, config.seq);
  text += memory_text(plan);
  text += format(
      "time   %.3f s a step, %s tokens/s; %" PRId64
      " steps take %s, without validation and checkpoints\n",
      plan.step_s, format_rate(tokens / plan.step_s).c_str(), config.steps,
      format_duration(plan.step_s * steps).c_str());
  text += format(
      "       measured over %" PRId64
      " steps; the time is that of the last one\n",
      plan.steps_measured);
  return plan.limits.empty() ? text : text + "limits\n" + plan.limits;
}

}  // namespace sherd::tools
