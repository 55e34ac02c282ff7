// SPDX-License-Identifier: Apache-2.0
//
// A module's parameter and its place in a ModelSpec. Thread rule: as for a value, which keeps the
// tensor alive.
#pragma once

#include <string>
#include <ATen/core/Tensor.h>
#include "plan/unit_id.h"

namespace sherd::exchange {

struct UnitParameter {
  std::string name;   // The first name under which it is registered.
  at::Tensor tensor;  // The module's own tensor object.
  plan::UnitId unit = 0;
  int flat = 0;      // In the unit.
  int position = 0;  // In the flat.
  // Among the unit's trainable parameters; -1: it never has gradients.
  int trainable = -1;
};

}  // namespace sherd::exchange
