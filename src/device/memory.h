// SPDX-License-Identifier: Apache-2.0
//
// StreamMemory takes memory of a device from LibTorch's allocator, by address, for places that
// several streams use. LibTorch gives a block to one stream and, once freed, to that stream again,
// so all blocks belong to one stream here, the owner, which knows by LastUse when the others are
// done. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include "device/last_use.h"
#include "device/stream.h"

namespace sherd::device {

// A 1-D tensor over memory that somebody else owns.
at::Tensor tensor_at(
    void* address, std::int64_t numel, const at::TensorOptions& options);

class StreamMemory {
 public:
  // `uses` must outlive it.
  StreamMemory(c10::Device device, const Stream& owner, LastUse& uses)
      : device_(device), owner_(owner), uses_(uses) {}
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  // A block of at least one byte, content undefined. Whoever uses it first waits for what LastUse
  // says. Throws c10::Error when there is no memory.
  void* take(std::int64_t bytes);
  // Uses of it are recorded in LastUse. REQUIRES: taken from here.
  void give_back(void* address);

 private:
  void release(void* address, std::size_t bytes);

  struct Block {
    c10::DataPtr data;
    std::size_t bytes = 0;
  };

  const c10::Device device_;
  const Stream owner_;
  LastUse& uses_;
  std::unordered_map<void*, Block> blocks_;
};

}  // namespace sherd::device
