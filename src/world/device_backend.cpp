// SPDX-License-Identifier: Apache-2.0
#include "world/device_backend.h"

#include <algorithm>
#include <utility>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include "base/check.h"
#include "compat/nccl_backend.h"
#include "world/store_wait.h"
#include "world/world_impl.h"

namespace sherd::world {
namespace {

DeviceBackend make_nccl(
    const World::Impl& world,
    const std::string& name,
    const std::vector<int>& ranks) {
  c10::intrusive_ptr<c10d::Store> store;
  if (ranks.size() > 1) {
    store = c10::make_intrusive<PollingStore>("device/" + name, world.store);
  } else {
    store = c10::make_intrusive<c10d::HashStore>();
  }
  const auto place = std::ranges::find(ranks, world.rank);
  return compat::make_nccl_backend(
      store, static_cast<int>(place - ranks.begin()),
      static_cast<int>(ranks.size()), world.options.deadline);
}

}  // namespace

void set_device_backend(
    const World& world, c10::DeviceType type, MakeDeviceBackend make) {
  world.impl()->device_backends.insert_or_assign(type, std::move(make));
}

void check_device_backend(const World& world, c10::Device device) {
  const bool known = world.impl()->device_backends.contains(device.type());
  SHERD_CHECK_AS(
      kUnavailable, known || (device.is_cuda() && compat::nccl_is_built()),
      "[world] ranks cannot exchange memory of ", device.str(),
      device.is_cuda()
          ? "; expected a sherd built with NCCL (a LibTorch with CUDA, and the "
            "CUDA and NCCL headers), found one built without"
          : "; expected parameters on the CPU or on CUDA devices");
}

DeviceBackend make_device_backend(
    const World& world,
    c10::Device device,
    const std::string& name,
    const std::vector<int>& ranks) {
  check_device_backend(world, device);
  const auto& known = world.impl()->device_backends;
  const auto found = known.find(device.type());
  return found != known.end() ? found->second(name, ranks)
                              : make_nccl(*world.impl(), name, ranks);
}

}  // namespace sherd::world
