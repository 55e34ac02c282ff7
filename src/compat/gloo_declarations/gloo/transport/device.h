// SPDX-License-Identifier: Apache-2.0
// Stands in for gloo's header: see src/compat/gloo_declarations/README.md.
#pragma once

namespace gloo::transport {

class Device;

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace gloo::transport
