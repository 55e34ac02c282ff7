// SPDX-License-Identifier: Apache-2.0
//
// Streams and events of the checking device, through the interface that LibTorch uses.
#include <array>
#include <memory>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "support/checking_device/device_state.h"

namespace sherd::test {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

Stream stream_of(DeviceIndex index, QueueId id) {
  return Stream(Stream::UNSAFE, Device(c10::kPrivateUse1, index), id);
}

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  Device exchangeDevice(Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override {
    return {c10::kPrivateUse1, thread_state().device};
  }
  void setDevice(Device device) const override {
    thread_state().device = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    thread_state().device = device.index();
  }
  Stream getStream(Device device) const override {
    const auto index =
        device.has_index() ? device.index() : getDevice().index();
    return stream_of(index, thread_state().stream(index));
  }
  Stream getDefaultStream(Device device) const override {
    return stream_of(device.index(), device.index());
  }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return getNewStream(device, 0);
  }
  Stream getNewStream(Device device, int) const override {
    const std::lock_guard lock(device_state().mu);
    auto& here = device_state().of(device.index());
    const auto id = device_state().next_stream++;
    if (!here.watched.empty()) {
      here.watched.push_back(id);
      here.waits.push_back(0);
    }
    return stream_of(device.index(), id);
  }
  Stream exchangeStream(Stream stream) const override {
    auto& current = thread_state().stream(stream.device_index());
    return stream_of(
        stream.device_index(), std::exchange(current, stream.id()));
  }
  DeviceIndex deviceCount() const noexcept override { return kCheckingDevices; }

  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    const std::unique_ptr<Moment> owned(static_cast<Moment*>(event));
  }
  void record(void** event, const Stream& stream, DeviceIndex, c10::EventFlag)
      const override {
    auto& state = device_state();
    const std::lock_guard lock(state.mu);
    if (*event == nullptr) {
      *event = std::make_unique<Moment>().release();
    }
    *static_cast<Moment*>(*event) = {
        .clock = state.streams[stream.id()],
        .capture = state.capture_of(stream.device_index(), stream.id())};
  }
  void block(void* event, const Stream& stream) const override {
    if (event != nullptr) {
      auto& state = device_state();
      const std::lock_guard lock(state.mu);
      auto& clock = state.streams[stream.id()];
      // What the host has waited for comes before everything that it starts later.
      clock.merge(state.of(stream.device_index()).host);
      const auto& moment = *static_cast<Moment*>(event);
      state.join_capture(stream.device_index(), stream.id(), moment);
      if (!clock.covers(moment.clock) &&
          state.count_wait(stream.device_index(), stream.id())) {
        clock.merge(moment.clock);
      }
    }
  }
  bool queryEvent(void* event) const override {
    const std::lock_guard lock(device_state().mu);
    return event == nullptr ||
        device_state().is_done(static_cast<Moment*>(event)->clock);
  }
  bool queryStream(const Stream& stream) const override {
    const std::lock_guard lock(device_state().mu);
    return device_state().is_done(device_state().streams[stream.id()]);
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) {
      return;
    }
    std::unique_lock lock(device_state().mu);
    auto& here = device_state().of(getDevice().index());
    const auto& moment = static_cast<Moment*>(event)->clock;
    if (here.host.covers(moment) ||
        here.event_waits++ != here.left_out_event_wait) {
      device_state().host_waited(
          lock, getDevice().index(), moment, "a wait for an event");
    }
  }
  void synchronizeStream(const Stream& stream) const override {
    std::unique_lock lock(device_state().mu);
    device_state().host_waited(
        lock, stream.device_index(), device_state().streams[stream.id()],
        "a wait for a stream");
  }
  void synchronizeDevice(DeviceIndex index) const override {
    std::unique_lock lock(device_state().mu);
    VectorClock everything;
    for (const auto& [queue, clock] : device_state().streams) {
      everything.merge(clock);
    }
    device_state().host_waited(lock, index, everything, "a wait for a device");
  }
  void recordDataPtrOnStream(
      const c10::DataPtr& data, const Stream& stream) const override {
    keep_for_stream(data, stream.id());
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return device_generator(index < 0 ? getCurrentDevice() : index);
  }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }
  bool isPinnedPtr(const void* memory) const override {
    return is_pinned(memory);
  }
  DeviceIndex deviceCount() const override { return kCheckingDevices; }
  DeviceIndex getCurrentDevice() const override {
    return thread_state().device;
  }
};

}  // namespace

const at::Generator& device_generator(DeviceIndex index) {
  static const auto generators = [] {
    std::array<at::Generator, kCheckingDevices> made;
    for (auto& generator : made) {
      generator = at::make_generator<at::CPUGeneratorImpl>();
    }
    return made;
  }();
  return generators.at(static_cast<std::size_t>(index));
}

void register_guard() {
  static const Guard guard;
  static Hooks hooks;
  c10::register_privateuse1_backend("checking");
  const c10::impl::DeviceGuardImplRegistrar registrar(
      c10::kPrivateUse1, &guard);
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

}  // namespace sherd::test
