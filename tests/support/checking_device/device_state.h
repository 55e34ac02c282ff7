// SPDX-License-Identifier: Apache-2.0
//
// What the files of the checking device share: clocks of streams and hosts, which access used which
// bytes, and announced work. For the device's own files only. Thread rule: everything under `mu`.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include "support/checking_device/checking_device.h"

namespace sherd::test {

// The work that a stream had been given up to a moment, in that capture or outside any.
struct Moment {
  VectorClock clock;
  CaptureId capture = 0;
};

struct AnnouncedWork::State {
  QueueId queue = 0;
  std::uint64_t number = 0;
  std::string name;
  bool done = false;
  std::string failure;
};

// A copy between pinned memory and a device that the host has not waited for.
struct HostCopy {
  QueueId queue = 0;
  std::uint64_t number = 0;
  char* place = nullptr;  // In pinned memory.
  bool to_host = false;
  std::vector<char> bytes;
};

inline constexpr auto kNoLimit = std::numeric_limits<std::size_t>::max();

// Streams are numbered over all devices; the default stream of a device has the device's number.
struct DeviceState {
  struct OneDevice {
    VectorClock host;  // What the host has waited for.
    std::int64_t host_synchronisations = 0;
    std::size_t bytes_max = kNoLimit;  // The limit for a block of memory.
    CaptureId capture = 0;             // The capture under way.
    std::set<QueueId> captured;        // The streams that take part in it.
    std::vector<std::string> faults;
    // For StreamWaits:
    std::vector<QueueId> watched;
    std::vector<int> waits;  // Indexed by watched stream.
    std::pair<std::size_t, int> left_out{0, -1};
    int event_waits = 0;  // Waits of the host.
    int left_out_event_wait = -1;
  };

  std::mutex mu;
  std::condition_variable work_finished;
  std::array<OneDevice, kCheckingDevices> devices;
  std::map<QueueId, VectorClock> streams;
  QueueId next_stream = kCheckingDevices;
  CaptureId captures = 0;
  AccessHistory history;
  std::list<std::shared_ptr<AnnouncedWork::State>> announced;
  std::map<void*, std::size_t> pinned;  // The size in bytes.
  std::list<HostCopy> host_copies;
  std::chrono::milliseconds deadline{20'000};

  OneDevice& of(c10::DeviceIndex index) {
    return devices.at(static_cast<std::size_t>(index));
  }
  // Returns when all announced work that the clock covers is done, or throws.
  void wait_for_announced(
      std::unique_lock<std::mutex>& lock,
      const VectorClock& clock,
      const std::string& name);
  // Whether the announced work that the clock covers is done.
  bool is_done(const VectorClock& clock) const;
  // The host has waited for everything that the clock covers. Throws in a capture.
  void host_waited(
      std::unique_lock<std::mutex>& lock,
      c10::DeviceIndex index,
      const VectorClock& clock,
      const std::string& why);
  // Finishes the copies that the device's host has waited for.
  void finish_host_copies(OneDevice& device);
  // The capture that the stream belongs to.
  CaptureId capture_of(c10::DeviceIndex index, QueueId stream);
  // The stream waits for that moment, and belongs to its capture from then on. Throws if one of
  // them belongs to a capture that has nothing to do with the other one.
  void join_capture(
      c10::DeviceIndex index, QueueId stream, const Moment& moment);
  // A stream waits for an event; returns false if the wait is left out.
  bool count_wait(c10::DeviceIndex index, QueueId stream);
  // Returns a sentence if the access is out of order, otherwise nothing.
  std::string note(
      QueueId queue,
      std::uint64_t number,
      const std::string& operation,
      const DeviceAccess& access);
};

DeviceState& device_state();

// The state of this thread.
struct ThreadState {
  c10::DeviceIndex device = 0;
  // The current streams, by device.
  std::array<QueueId, kCheckingDevices> streams{};
  // The operator begun last, by device.
  std::array<std::uint64_t, kCheckingDevices> last_number{};

  ThreadState() {
    for (std::size_t d = 0; d < streams.size(); ++d) {
      streams[d] = static_cast<QueueId>(d);
    }
  }
  QueueId& stream(c10::DeviceIndex index) {
    return streams.at(static_cast<std::size_t>(index));
  }
};

ThreadState& thread_state();

// Like record_stream(): the memory is not free before what the stream has been given so far is
// done.
void keep_for_stream(const c10::DataPtr& data, QueueId stream);

// The device's own random number generator, used by operators that are given no other.
const at::Generator& device_generator(c10::DeviceIndex index);

// host_copies.cpp.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* memory);
// What pinned memory holds for a copy that this thread has begun, including what was brought there
// by copies that come before it in its stream and for which the host has not waited.
std::vector<char> bytes_for_device(
    c10::Device device, const void* place, std::size_t bytes);
// Records the copy of these bytes that this thread has begun and made.
void note_host_copy(
    c10::Device device,
    void* place,
    const std::vector<char>& bytes,
    bool to_host);

// What checking_device() does once: device_guard.cpp, device_memory.cpp, operators.cpp.
void register_guard();
void register_allocator();
void register_operators();
void register_sparse_operators();

}  // namespace sherd::test
