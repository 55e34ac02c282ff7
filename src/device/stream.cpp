// SPDX-License-Identifier: Apache-2.0
#include "device/stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace sherd::device {
namespace {

// On all devices of LibTorch, lower numbers mean higher priority.
constexpr int kHighPriority = -1;

}  // namespace

Stream Stream::current(c10::Device device) {
  if (device.is_cpu()) {
    return {};
  }
  return Stream(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

Stream Stream::with_high_priority(c10::Device device) {
  if (device.is_cpu()) {
    return {};
  }
  return Stream(c10::impl::VirtualGuardImpl(device.type())
                    .getNewStream(device, kHighPriority));
}

Event Stream::record() const {
  if (!stream_) {
    return {};
  }
  auto event = std::make_shared<c10::Event>(stream_->device_type());
  event->record(*stream_);
  return Event(std::move(event));
}

void Stream::wait(const Event& event) const {
  if (stream_ && event.event_ != nullptr) {
    event.event_->block(*stream_);
  }
}

}  // namespace sherd::device
