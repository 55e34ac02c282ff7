// SPDX-License-Identifier: Apache-2.0
// Stands in for gloo's header: see src/compat/gloo_declarations/README.md.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
