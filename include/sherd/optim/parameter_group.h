// SPDX-License-Identifier: Apache-2.0
//
// ParameterGroup gives some parameters other settings than the rest. It selects them by name, so
// that every rank puts its slices of one parameter in the same group without asking the others. A
// value.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace sherd {

struct ParameterGroup {
  // Shell patterns (`*`, `?`, `[ab]`) for the whole name; `*` also crosses dots: "*.bias",
  // "h.*.ln_?.weight". A parameter belongs to the first group with a matching pattern, else it has
  // the optimizer's own settings. A pattern may match nothing: a rank need not own a slice of each
  // parameter.
  std::vector<std::string> names;
  // Multiplies the learning rate, also after set_learning_rate(). 0 freezes the values, while the
  // state is still updated.
  double learning_rate_scale = 1.0;
  // Replaces the optimizer's own.
  std::optional<double> weight_decay = std::nullopt;
};

}  // namespace sherd
