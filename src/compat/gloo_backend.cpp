// SPDX-License-Identifier: Apache-2.0
#include "compat/gloo_backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace sherd::compat {

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const GlooOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo_options = Gloo::Options::create(options.connect_deadline);
  gloo_options->threads = 1;
  if (!options.address.empty()) {
    gloo_options->devices.push_back(
        Gloo::createDeviceForHostname(options.address));
  } else if (!options.network_interface.empty()) {
    gloo_options->devices.push_back(
        Gloo::createDeviceForInterface(options.network_interface));
  } else {
    gloo_options->devices.push_back(Gloo::createDefaultDevice());
  }
  auto backend = c10::make_intrusive<Gloo>(store, rank, size, gloo_options);
  backend->setTimeout(options.wait_deadline);
  return backend;
}

}  // namespace sherd::compat
