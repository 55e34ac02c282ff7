// SPDX-License-Identifier: Apache-2.0
//
// LastUse knows, by memory range, until which moment each stream may use it. The next writer of the
// range, on any stream, waits for those moments. It replaces record_stream(), which only tells the
// allocator, and only when the memory is freed. Without streams it stores nothing.
// docs/design/gpu.md. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>
#include <ATen/core/Tensor.h>
#include "device/stream.h"

namespace sherd::device {

// The addresses [begin, end).
struct Place {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;

  static Place at(const void* address, std::size_t bytes) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    return {begin, begin + bytes};
  }
  // REQUIRES: contiguous.
  static Place of(const at::Tensor& tensor) {
    return at(tensor.const_data_ptr(), tensor.nbytes());
  }
};

class LastUse {
 public:
  // Records that the work queued on the stream so far may use the place.
  void record(const Place& place, const Stream& stream);

  // Makes the stream wait until every other stream is done with all bytes of the place.
  void wait(const Place& place, const Stream& stream) const;

  // The memory is returned: later uses of its addresses are unrelated to those recorded.
  void forget(const Place& place);

  // Call it after the host has waited for every stream that was recorded.
  void clear();

  // The number of recorded uses.
  std::size_t size() const;

 private:
  struct Use {
    Place place;
    Stream stream;
    Event until;
  };

  mutable std::mutex mu_;
  std::vector<Use> uses_;  // Guarded by mu_. One per stream and place; few.
};

}  // namespace sherd::device
