// SPDX-License-Identifier: Apache-2.0
//
// What metrics.jsonl has of a step, by name: for its lines, and for files that have one column or one
// curve for each number. Thread rule: a constant.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <variant>
#include "train/step_metrics.h"

namespace sherd::tools {

struct MetricColumn {
  const char* name;
  // Steps may lack what is optional.
  std::variant<
      std::int64_t StepMetrics::*,
      double StepMetrics::*,
      std::optional<double> StepMetrics::*,
      std::optional<bool> StepMetrics::*>
      member;
  bool may_lack = false;  // Lines may be without it; those of old runs are.

  std::optional<double> value(const StepMetrics& record) const {
    return std::visit(
        [&](auto of_step) -> std::optional<double> {
          const std::optional found(record.*of_step);
          return found ? std::optional(static_cast<double>(*found))
                       : std::nullopt;
        },
        member);
  }
};

// Everything but `ranks`, in this order.
inline constexpr std::array kMetricColumns = std::to_array<MetricColumn>({
    {"step", &StepMetrics::step},
    {"time", &StepMetrics::time, true},
    {"tokens", &StepMetrics::tokens, true},
    {"loss", &StepMetrics::loss},
    {"val_loss", &StepMetrics::val_loss, true},
    {"lr", &StepMetrics::lr},
    {"grad_norm", &StepMetrics::grad_norm},
    {"loss_scale", &StepMetrics::loss_scale, true},
    {"skipped", &StepMetrics::skipped, true},
    {"step_s", &StepMetrics::step_s},
    {"tokens_per_s", &StepMetrics::tokens_per_s},
    {"mfu", &StepMetrics::mfu, true},
    {"rss_bytes", &StepMetrics::rss_bytes},
});

}  // namespace sherd::tools
