// SPDX-License-Identifier: Apache-2.0
#include "device/memory.h"

#include <algorithm>

#include <ATen/ops/empty.h>
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

at::Tensor allocate(
    const AllocateTensor& by,
    std::int64_t numel,
    const at::TensorOptions& options) {
  return by ? by(numel, options) : at::empty({numel}, options);
}

StreamMemory::~StreamMemory() {
  for (const auto& [address, block] : blocks_) {
    release(block);
  }
}

void* StreamMemory::take(std::int64_t bytes) {
  const CurrentStream on_owner(owner_);
  auto block = allocate(
      allocate_, std::max<std::int64_t>(bytes, 1),
      at::device(device_).dtype(at::kByte));
  void* address = block.mutable_data_ptr();
  // The owner may still be working with the former content of the block.
  uses_.record(Place::of(block), owner_);
  blocks_.insert_or_assign(address, std::move(block));
  return address;
}

void StreamMemory::give_back(void* address) {
  const auto found = blocks_.find(address);
  SHERD_ASSERT(found != blocks_.end());
  release(found->second);
  blocks_.erase(found);
}

// The owner may use the block again as soon as it is freed.
void StreamMemory::release(const at::Tensor& block) {
  const auto place = Place::of(block);
  uses_.wait(place, owner_);
  uses_.forget(place);
}

}  // namespace sherd::device
