// SPDX-License-Identifier: Apache-2.0
#include "support/checking_device/checking_device.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "base/check.h"
#include "support/checking_device/device_state.h"

namespace sherd::test {
namespace {

const char* verb(AccessKind kind) {
  switch (kind) {
    case AccessKind::kRead:
      return "reads";
    case AccessKind::kWrite:
      return "writes";
    case AccessKind::kFree:
      return "frees";
  }
  return "";
}

}  // namespace

DeviceState& device_state() {
  static DeviceState state;
  return state;
}

ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

std::string DeviceState::note(
    QueueId queue,
    std::uint64_t number,
    const std::string& operation,
    const DeviceAccess& access) {
  const auto begin = reinterpret_cast<std::uintptr_t>(access.address);
  const auto earlier = history.note(
      {begin, begin + access.bytes}, {access.kind, operation, queue, number},
      streams[queue]);
  if (!earlier) {
    return "";
  }
  auto found =
      str("[checking device] ", operation, " on stream ", queue, ' ',
          verb(access.kind), " what ", earlier->operation, " on stream ",
          earlier->queue, ' ', verb(earlier->kind));
  return earlier->kind == AccessKind::kFree
      ? found
      : found + ", and no event orders them";
}

bool DeviceState::is_done(const VectorClock& clock) const {
  return std::ranges::none_of(announced, [&](const auto& work) {
    return !work->done && clock.covers(work->queue, work->number);
  });
}

void DeviceState::wait_for_announced(
    std::unique_lock<std::mutex>& lock,
    const VectorClock& clock,
    const std::string& name) {
  const auto covered = clock;  // Other threads may change it meanwhile.
  const bool in_time =
      work_finished.wait_for(lock, deadline, [&] { return is_done(covered); });
  for (const auto& work : announced) {
    if (covered.covers(work->queue, work->number)) {
      TORCH_CHECK(
          in_time, "[checking device] ", name, " comes after ", work->name,
          ", which some rank has not started");
      TORCH_CHECK(work->failure.empty(), work->failure);
    }
  }
}

void DeviceState::host_waited(
    std::unique_lock<std::mutex>& lock,
    c10::DeviceIndex index,
    const VectorClock& clock,
    const std::string& why) {
  TORCH_CHECK(
      of(index).capture == 0, "[checking device] ", why,
      " makes the host wait, in a capture");
  ++of(index).host_synchronisations;
  wait_for_announced(lock, clock, why);
  of(index).host.merge(clock);
  finish_host_copies(of(index));
}

bool DeviceState::count_wait(c10::DeviceIndex index, QueueId stream) {
  auto& here = of(index);
  const auto found = std::ranges::find(here.watched, stream);
  if (found == here.watched.end()) {
    return true;
  }
  const auto watched = static_cast<std::size_t>(found - here.watched.begin());
  const std::pair now(watched, here.waits[watched]++);
  return now != here.left_out;
}

StreamWaits::StreamWaits(c10::Device device) : device_(device) {
  const std::lock_guard lock(device_state().mu);
  auto& here = device_state().of(device_.index());
  here.watched = {device_.index()};
  here.waits = {0};
  here.event_waits = 0;
}

StreamWaits::~StreamWaits() {
  const std::lock_guard lock(device_state().mu);
  auto& here = device_state().of(device_.index());
  here.watched.clear();
  here.waits.clear();
  here.left_out = {0, -1};
  here.left_out_event_wait = -1;
}

std::vector<int> StreamWaits::counts() const {
  const std::lock_guard lock(device_state().mu);
  return device_state().of(device_.index()).waits;
}

int StreamWaits::of_host() const {
  const std::lock_guard lock(device_state().mu);
  return device_state().of(device_.index()).event_waits;
}

void StreamWaits::leave_out_of_host(int wait) {
  const std::lock_guard lock(device_state().mu);
  device_state().of(device_.index()).left_out_event_wait = wait;
}

void StreamWaits::leave_out(std::size_t stream, int wait) {
  const std::lock_guard lock(device_state().mu);
  device_state().of(device_.index()).left_out = {stream, wait};
}

c10::Device checking_device(int index) {
  static const bool installed = [] {
    register_allocator();
    register_guard();
    register_operators();
    register_sparse_operators();
    return true;
  }();
  TORCH_CHECK(installed && index >= 0 && index < kCheckingDevices);
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

std::int64_t host_synchronisations(c10::Device device) {
  const std::lock_guard lock(device_state().mu);
  return device_state().of(device.index()).host_synchronisations;
}

std::vector<std::string> take_faults(c10::Device device) {
  const std::lock_guard lock(device_state().mu);
  return std::exchange(device_state().of(device.index()).faults, {});
}

OutOfMemoryScope::OutOfMemoryScope(c10::Device device, std::size_t bytes_max)
    : device_(device) {
  const std::lock_guard lock(device_state().mu);
  device_state().of(device_.index()).bytes_max = bytes_max;
}

OutOfMemoryScope::~OutOfMemoryScope() {
  const std::lock_guard lock(device_state().mu);
  device_state().of(device_.index()).bytes_max = kNoLimit;
}

CaptureId DeviceState::capture_of(c10::DeviceIndex index, QueueId stream) {
  const auto& here = of(index);
  return here.captured.contains(stream) ? here.capture : 0;
}

void DeviceState::join_capture(
    c10::DeviceIndex index, QueueId stream, const Moment& moment) {
  auto& here = of(index);
  if (moment.capture == 0) {
    TORCH_CHECK(
        !here.captured.contains(stream), "[checking device] stream ", stream,
        " waits, in a capture, for what was put into a stream before it");
    return;
  }
  TORCH_CHECK(
      moment.capture == here.capture, "[checking device] stream ", stream,
      " waits for a moment of a capture that has ended");
  here.captured.insert(stream);
}

CaptureScope::CaptureScope(c10::Device device) : device_(device) {
  const auto stream = thread_state().stream(device.index());
  const std::lock_guard lock(device_state().mu);
  auto& here = device_state().of(device_.index());
  here.capture = ++device_state().captures;
  here.captured = {stream};
}

CaptureScope::~CaptureScope() {
  const auto origin = thread_state().stream(device_.index());
  auto& state = device_state();
  const std::lock_guard lock(state.mu);
  auto& here = state.of(device_.index());
  for (const auto stream : here.captured) {
    if (!state.streams[origin].covers(state.streams[stream])) {
      here.faults.push_back(
          str("[checking device] at the end of a capture stream ", origin,
              " has not waited for stream ", stream));
    }
  }
  here.capture = 0;
  here.captured.clear();
}

void begin_operator(
    c10::Device device,
    const std::string& name,
    const std::vector<DeviceAccess>& accesses) {
  auto& state = device_state();
  std::unique_lock lock(state.mu);
  auto& here = state.of(device.index());
  if (!here.faults.empty()) {
    TORCH_CHECK(false, std::exchange(here.faults, {}).front());
  }
  const auto queue = thread_state().stream(device.index());
  auto& clock = state.streams[queue];
  clock.merge(here.host);
  state.wait_for_announced(lock, clock, name);
  const auto number = clock.tick(queue);
  thread_state().last_number.at(static_cast<std::size_t>(device.index())) =
      number;
  TORCH_CHECK(
      here.capture == 0 || here.captured.contains(queue), "[checking device] ",
      name, " on stream ", queue, " is not in the capture that is under way");
  std::string fault;
  for (const auto& access : accesses) {
    auto found = state.note(queue, number, name, access);
    fault = fault.empty() ? std::move(found) : fault;
  }
  TORCH_CHECK(fault.empty(), fault);
}

void note_access(
    c10::Device device, const std::string& name, const DeviceAccess& access) {
  auto& state = device_state();
  const std::lock_guard lock(state.mu);
  const auto fault = state.note(
      thread_state().stream(device.index()),
      thread_state().last_number.at(static_cast<std::size_t>(device.index())),
      name, access);
  TORCH_CHECK(fault.empty(), fault);
}

void synchronise_with_host(c10::Device device, const std::string& why) {
  auto& state = device_state();
  std::unique_lock lock(state.mu);
  const auto queue = thread_state().stream(device.index());
  state.host_waited(lock, device.index(), state.streams[queue], why);
}

AnnouncedWork::AnnouncedWork(c10::Device device, std::string name)
    : state_(std::make_shared<State>()) {
  state_->queue = thread_state().stream(device.index());
  state_->number =
      thread_state().last_number.at(static_cast<std::size_t>(device.index()));
  state_->name = std::move(name);
  const std::lock_guard lock(device_state().mu);
  device_state().announced.push_back(state_);
}

AnnouncedWork::~AnnouncedWork() {
  const std::lock_guard lock(device_state().mu);
  device_state().announced.remove(state_);
  device_state().work_finished.notify_all();
}

void AnnouncedWork::finish(const std::string& failure) {
  const std::lock_guard lock(device_state().mu);
  state_->done = true;
  state_->failure = failure;
  device_state().work_finished.notify_all();
}

void set_announced_work_deadline(std::chrono::milliseconds deadline) {
  const std::lock_guard lock(device_state().mu);
  device_state().deadline = deadline;
}

}  // namespace sherd::test
