// SPDX-License-Identifier: Apache-2.0
//
// A device for tests whose streams and events only record order: operators run on the CPU, inside
// the call that launches them, and each access to memory is checked against the order given by
// streams and events. An access that nothing orders is a c10::Error of the operator, whatever the
// timing was. So a machine without an accelerator can check whether a program for one is correct.
// docs/design/gpu.md
//
// It is LibTorch's private-use device, of which a process has one type; here it has kDevices, one
// for each rank that is a thread. Its addresses cannot be read by the host. As on CUDA, memory
// belongs to the stream it was allocated on, backward runs on a thread of its own, and order that
// only a peer provides does not count. Thread rule: any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include "support/checking_device/access_history.h"

namespace sherd::test {

inline constexpr int kCheckingDevices = 8;

// Registers the device with LibTorch if that has not happened yet. Must be called before the first
// backward of the process.
c10::Device checking_device(int index = 0);

// How often the host has waited for that device: for events, streams and values.
std::int64_t host_synchronisations(c10::Device device);

// What was wrong with frees since the last call. Frees cannot throw; the next operator of the
// device does. Also reports pinned memory that was written while the device might still read it.
std::vector<std::string> take_faults(c10::Device device);

// While it lives, the device's work is captured: everything given to this thread's current stream,
// and to streams that wait for it. During a capture it is an error to wait on the host, to allocate
// memory that no free of the same stream and size has given back, to put work into another stream,
// or to wait for a moment before the capture; afterwards, it is an error to wait for a moment
// inside it. A stream that was not waited for at the end is a fault.
class CaptureScope {
 public:
  explicit CaptureScope(c10::Device device);
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

 private:
  const c10::Device device_;
};

// While it lives, the device has no memory for a block of more than this many bytes.
class OutOfMemoryScope {
 public:
  OutOfMemoryScope(c10::Device device, std::size_t bytes_max);
  ~OutOfMemoryScope();
  OutOfMemoryScope(const OutOfMemoryScope&) = delete;
  OutOfMemoryScope& operator=(const OutOfMemoryScope&) = delete;

 private:
  const c10::Device device_;
};

// Counts, from its construction on, how often each stream of the device waits for a moment that no
// earlier wait, of the stream or of the host, implies. It can leave out such a wait: in a program
// in which every wait is needed, leaving out any one of them is a fault. Streams are numbered: 0 is
// the default one, and those created since follow in order. Only one may exist per device at a
// time.
class StreamWaits {
 public:
  explicit StreamWaits(c10::Device device);
  ~StreamWaits();
  StreamWaits(const StreamWaits&) = delete;
  StreamWaits& operator=(const StreamWaits&) = delete;

  std::vector<int> counts() const;  // Indexed by stream.
  // The stream's wait with that number, counted from 0, does nothing.
  void leave_out(std::size_t stream, int wait);
  // The same for waits of the host for events.
  int of_host() const;
  void leave_out_of_host(int wait);

 private:
  const c10::Device device_;
};

// ---- for code that runs operators: operators.cpp, thread_backend.cpp ----

// Where the host can access the bytes at an address of the device.
void* host_view(const void* device_address);

struct DeviceAccess {
  const void* address = nullptr;
  std::size_t bytes = 0;
  AccessKind kind = AccessKind::kRead;
};

// Begins an operator on the current stream of `device`: checks its accesses, and waits for earlier
// work that was only announced so far. Then the caller may run it.
void begin_operator(
    c10::Device device,
    const std::string& name,
    const std::vector<DeviceAccess>& accesses);
// Records more accesses of the operator that this thread began last, e.g. of results.
void note_access(
    c10::Device device, const std::string& name, const DeviceAccess& access);
// The host waits for the current stream.
void synchronise_with_host(c10::Device device, const std::string& why);

// Work that was put into a stream by begin_operator() and runs later, on any thread. Later work
// waits until finish(), which may pass a failure.
class AnnouncedWork {
 public:
  // For the operator that this thread began last on the device.
  explicit AnnouncedWork(c10::Device device, std::string name);
  ~AnnouncedWork();
  void finish(const std::string& failure);
  struct State;

 private:
  std::shared_ptr<State> state_;
};

// How long later work waits for announced work.
void set_announced_work_deadline(std::chrono::milliseconds deadline);

}  // namespace sherd::test
