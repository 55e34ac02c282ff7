// SPDX-License-Identifier: Apache-2.0
//
// Backends of c10d that move the memory of devices between ranks of a world. CUDA devices use NCCL
// if sherd is built with it; for devices of other types, or for another backend, the world is told
// how to make one. All other messages between ranks stay on the CPU (transport.h). Thread rule: as
// World.
#pragma once

#include <functional>
#include <string>
#include <vector>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>
#include <sherd/world/world.h>

namespace sherd::world {

using DeviceBackend = c10::intrusive_ptr<c10d::Backend>;

// Collective over `ranks` (world ranks, ascending), in which this rank has the same place as in the
// backend; the name is unique in this world.
using MakeDeviceBackend = std::function<DeviceBackend(
    const std::string& name, const std::vector<int>& ranks)>;

// From now on backends for devices of this type are made with it. A subset() does not inherit it.
void set_device_backend(
    const World& world, c10::DeviceType type, MakeDeviceBackend make);

// Throws Error if there is none for the device.
void check_device_backend(const World& world, c10::Device device);

// Collective, as MakeDeviceBackend. REQUIRES: check_device_backend().
DeviceBackend make_device_backend(
    const World& world,
    c10::Device device,
    const std::string& name,
    const std::vector<int>& ranks);

}  // namespace sherd::world
