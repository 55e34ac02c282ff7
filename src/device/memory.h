// SPDX-License-Identifier: Apache-2.0
//
// StreamMemory allocates memory of a device, by address, for places that several streams use.
// LibTorch assigns a block to one stream and reuses it, once freed, for that
// stream. So here all blocks belong to one stream, the owner, which learns from LastUse when the
// others are done. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <ATen/core/Tensor.h>
#include "device/last_use.h"
#include "device/stream.h"

namespace sherd::device {

// A 1-D tensor over memory that it does not own.
at::Tensor tensor_at(
    void* address, std::int64_t numel, const at::TensorOptions& options);

// Makes a 1-D tensor with undefined content, whose memory belongs to the current stream. Empty:
// LibTorch's allocator makes it.
using AllocateTensor = std::function<at::Tensor(
    std::int64_t numel, const at::TensorOptions& options)>;
at::Tensor allocate(
    const AllocateTensor& by,
    std::int64_t numel,
    const at::TensorOptions& options);

class StreamMemory {
 public:
  // `uses` must outlive it.
  StreamMemory(
      c10::Device device,
      const Stream& owner,
      LastUse& uses,
      AllocateTensor allocate = {})
      : device_(device),
        owner_(owner),
        uses_(uses),
        allocate_(std::move(allocate)) {}
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  // Returns a block of at least one byte with undefined content. Its first user waits for what
  // LastUse says. Throws c10::Error if there is no memory.
  void* take(std::int64_t bytes);
  // Returns a block; its uses are recorded in LastUse. REQUIRES: taken from here.
  void give_back(void* address);

 private:
  void release(const at::Tensor& block);

  const c10::Device device_;
  const Stream owner_;
  LastUse& uses_;
  const AllocateTensor allocate_;
  std::unordered_map<void*, at::Tensor> blocks_;  // By address, as bytes.
};

}  // namespace sherd::device
