// SPDX-License-Identifier: Apache-2.0
//
// The numbers of a step by name, for files that have one column or one curve for each. Thread rule:
// a constant.
#pragma once

#include <array>
#include <optional>
#include "train/step_metrics.h"

namespace sherd::tools {

template <typename Value>
constexpr std::optional<double> metric_number(Value value) {
  return static_cast<double>(value);
}

struct MetricColumn {
  const char* name;  // As in metrics.jsonl.
  // Nullopt if the step does not have it.
  std::optional<double> (*value)(const StepMetrics& record);
};

// In the order of metrics.jsonl, whose `ranks` are not among them.
inline constexpr std::array kMetricColumns = std::to_array<MetricColumn>({
    {"step", [](const StepMetrics& of) { return metric_number(of.step); }},
    {"time", [](const StepMetrics& of) { return metric_number(of.time); }},
    {"tokens", [](const StepMetrics& of) { return metric_number(of.tokens); }},
    {"loss", [](const StepMetrics& of) { return metric_number(of.loss); }},
    {"val_loss", [](const StepMetrics& of) { return of.val_loss; }},
    {"lr", [](const StepMetrics& of) { return metric_number(of.lr); }},
    {"grad_norm",
     [](const StepMetrics& of) { return metric_number(of.grad_norm); }},
    {"loss_scale", [](const StepMetrics& of) { return of.loss_scale; }},
    {"skipped",
     [](const StepMetrics& of) {
       return of.loss_scale ? metric_number(of.skipped) : std::nullopt;
     }},
    {"step_s", [](const StepMetrics& of) { return metric_number(of.step_s); }},
    {"tokens_per_s",
     [](const StepMetrics& of) { return metric_number(of.tokens_per_s); }},
    {"mfu", [](const StepMetrics& of) { return of.mfu; }},
    {"rss_bytes",
     [](const StepMetrics& of) { return metric_number(of.rss_bytes); }},
});

}  // namespace sherd::tools
