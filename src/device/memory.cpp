// SPDX-License-Identifier: Apache-2.0
#include "device/memory.h"

#include <algorithm>

#include <ATen/ops/from_blob.h>

#include "base/check.h"

namespace sherd::device {

at::Tensor tensor_at(
    void* address, std::int64_t numel, const at::TensorOptions& options) {
  return at::for_blob(address, {numel})
      .options(options)
      .target_device(options.device())
      .make_tensor();
}

StreamMemory::~StreamMemory() {
  for (const auto& [address, block] : blocks_) {
    release(address, block.bytes);
  }
}

void* StreamMemory::take(std::int64_t bytes) {
  const CurrentStream on_owner(owner_);
  const auto size = static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1));
  auto data = c10::GetAllocator(device_.type())->allocate(size);
  void* address = data.get();
  blocks_.insert_or_assign(address, Block{std::move(data), size});
  // The owner may still be working with the former content of the block.
  uses_.record(Place::at(address, size), owner_);
  return address;
}

void StreamMemory::give_back(void* address) {
  const auto found = blocks_.find(address);
  SHERD_ASSERT(found != blocks_.end());
  release(address, found->second.bytes);
  blocks_.erase(found);
}

// The owner may use the block again as soon as it is freed.
void StreamMemory::release(void* address, std::size_t bytes) {
  const auto place = Place::at(address, bytes);
  uses_.wait(place, owner_);
  uses_.forget(place);
}

}  // namespace sherd::device
