// SPDX-License-Identifier: Apache-2.0
//
// Streams of a device, and moments in them, over LibTorch's generic interface, so that nothing here
// names CUDA. The CPU is a device without streams: its work is done when the call returns, so it
// has only the null stream, which costs nothing. The host waits only in Event::synchronize().
// docs/design/gpu.md. Thread rule: any thread; each thread has its own current stream.
#pragma once

#include <memory>
#include <optional>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

namespace sherd::device {

// A moment in a stream: all work that was queued before it. A copy is the same moment. Null: no
// work.
class Event {
 public:
  Event() = default;

  // The host waits until the device has done all of this work.
  void synchronize() const {
    if (event_ != nullptr) {
      event_->synchronize();
    }
  }

 private:
  friend class Stream;
  explicit Event(std::shared_ptr<const c10::Event> event)
      : event_(std::move(event)) {}

  std::shared_ptr<const c10::Event> event_;
};

class Stream {
 public:
  Stream() = default;  // Null.

  // The current stream of this thread on the device.
  static Stream current(c10::Device device);
  // A new stream whose work has priority when the device is busy.
  static Stream with_high_priority(c10::Device device);

  bool is_null() const { return !stream_; }
  bool operator==(const Stream&) const = default;

  // Returns the current moment.
  Event record() const;
  // Work queued on this stream from now on begins after the event's work is done.
  void wait(const Event& event) const;

 private:
  friend class CurrentStream;
  explicit Stream(c10::Stream stream) : stream_(stream) {}

  std::optional<c10::Stream> stream_;
};

// While it lives, the stream is this thread's current one, and its device the current device.
class CurrentStream {
 public:
  explicit CurrentStream(const Stream& stream) {
    if (!stream.is_null()) {
      guard_.emplace(*stream.stream_);
    }
  }

 private:
  std::optional<c10::StreamGuard> guard_;
};

}  // namespace sherd::device
