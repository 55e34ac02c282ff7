// SPDX-License-Identifier: Apache-2.0
#include "compat/gloo_backend.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace sherd::compat {

struct GlooDevice {
  std::shared_ptr<::gloo::transport::Device> device;
};

std::shared_ptr<GlooDevice> make_gloo_device(const GlooAddress& address) {
  using Gloo = c10d::ProcessGroupGloo;
  auto made = std::make_shared<GlooDevice>();
  if (!address.address.empty()) {
    made->device = Gloo::createDeviceForHostname(address.address);
  } else if (!address.network_interface.empty()) {
    made->device = Gloo::createDeviceForInterface(address.network_interface);
  } else {
    made->device = Gloo::createDefaultDevice();
  }
  return made;
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const GlooOptions& options) {
  using Gloo = c10d::ProcessGroupGloo;
  auto gloo_options = Gloo::Options::create(options.connect_deadline);
  gloo_options->threads = 1;
  gloo_options->devices.push_back(options.device->device);
  auto backend = c10::make_intrusive<Gloo>(store, rank, size, gloo_options);
  backend->setTimeout(options.wait_deadline);
  return backend;
}

}  // namespace sherd::compat
