// SPDX-License-Identifier: Apache-2.0
//
// LastUse knows, by place of memory, up to which moment each stream may use it. Who writes there
// next, on whatever stream, waits for those moments. It takes the place of record_stream(), which
// tells the allocator alone, and only when the memory is freed. Without streams it keeps nothing.
// docs/design/gpu.md Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>
#include <ATen/core/Tensor.h>
#include "device/stream.h"

namespace sherd::device {

// [begin, end), addresses.
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
  // The stream may use the place with what it was given up to now.
  void record(const Place& place, const Stream& stream);

  // The stream goes on when every other stream is done with all bytes of the place.
  void wait(const Place& place, const Stream& stream) const;

  // The memory is given back: later users of its addresses have nothing to do with those known here.
  void forget(const Place& place);

  // The host has waited for every stream that was recorded.
  void clear();

  // How many uses are known.
  std::size_t size() const;

 private:
  struct Use {
    Place place;
    Stream stream;
    Event until;
  };

  mutable std::mutex mu_;
  std::vector<Use> uses_;  // Guarded by mu_. One a stream and place; few.
};

}  // namespace sherd::device
