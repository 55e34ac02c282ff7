// SPDX-License-Identifier: Apache-2.0
#include "autograd/managed_storage.h"

#include <utility>

#include <c10/core/StorageImpl.h>
#include <torch/version.h>
#include "base/check.h"

namespace sherd::autograd {
namespace {

// The deleter of every tagged DataPtr; its address identifies managed storages.
void release_tag(void* context) {
  auto* tag = static_cast<StorageTag*>(context);
  // acq_rel: the last owner must see, before it deletes, what the others wrote.
  if (tag->references.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete tag;  // NOLINT: counted by hand, a DataPtr cannot hold a shared_ptr.
  }
}

StorageTag* make_tag(
    ParameterUseListener* listener,
    int unit,
    int flat,
    const ActivationCasts& casts) {
  auto* tag = new StorageTag;  // NOLINT: see release_tag.
  tag->listener.store(listener, std::memory_order_release);
  tag->unit = unit;
  tag->flat = flat;
  tag->casts = casts;
  // One reference for the ManagedStorage, one for the storage's DataPtr.
  tag->references.store(2, std::memory_order_relaxed);
  return tag;
}

// Before version 2.12, a storage that was made unreadable cannot be made readable again. There a
// read without the dispatcher finds a null pointer instead of an error that names the reason.
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
void set_readable(c10::StorageImpl& storage) {
  storage.clear_data_ptr_access_error_msg_();
}
void set_unreadable(c10::StorageImpl& storage, const std::string& why) {
  // Despite its name this frees nothing; it sets the access flag.
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
}
#else
void set_readable(c10::StorageImpl& /*storage*/) {}
void set_unreadable(c10::StorageImpl& /*storage*/, const std::string& /*why*/) {
}
#endif

}  // namespace

const StorageTag* tag_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) {
    return nullptr;
  }
  const auto& data =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (data.get_deleter() != &release_tag) {
    return nullptr;
  }
  return static_cast<const StorageTag*>(data.get_context());
}

bool is_disconnected(const at::Tensor& tensor) {
  const auto* tag = tag_of(tensor);
  // Pairs with the release store in disconnect().
  return tag != nullptr &&
      tag->listener.load(std::memory_order_acquire) == nullptr;
}

void check_has_values(
    const char* part, const std::string& name, const at::Tensor& tensor) {
  SHERD_CHECK_AS(
      kFailedPrecondition, !is_disconnected(tensor), "[", part, "] parameter ",
      name,
      " has no values any more, since the sharding handle of its module was "
      "closed or destroyed; expected a new module, which may load them from a "
      "checkpoint");
  SHERD_CHECK_AS(
      kFailedPrecondition, !tensor.is_inference(), "[", part, "] parameter ",
      name,
      " was made in inference mode, so that it can never be trained; expected "
      "a module that was made outside of c10::InferenceMode");
}

ManagedStorage::ManagedStorage(
    ParameterUseListener* listener,
    int unit,
    int flat,
    std::int64_t nbytes,
    c10::Device device,
    const ActivationCasts& casts)
    : tag_(make_tag(listener, unit, flat, casts)),
      storage_(
          c10::Storage::use_byte_size_t(),
          static_cast<std::size_t>(nbytes),
          c10::DataPtr(nullptr, tag_, &release_tag, device),
          /*allocator=*/nullptr,
          // resize_ would move a frozen parameter out of its unit.
          /*resizable=*/false) {
  empty("sherd: a sharded parameter was read before its unit was filled");
}

ManagedStorage::~ManagedStorage() {
  disconnect(
      "sherd: the sharding handle of this model was destroyed; parameters of "
      "a sharded model live as long as its handle");
  release_tag(tag_);
}

void ManagedStorage::set_pointer(void* bytes) {
  // A reference for the new DataPtr. The old one gives its own back once the new one is in place,
  // so that tag_of() finds the tag at any moment.
  tag_->references.fetch_add(1, std::memory_order_relaxed);
  storage_.unsafeGetStorageImpl()->set_data_ptr_noswap(
      c10::DataPtr(bytes, tag_, &release_tag, storage_.device()));
}

void ManagedStorage::fill(void* bytes) {
  set_readable(*storage_.unsafeGetStorageImpl());
  set_pointer(bytes);
}

std::optional<c10::DataPtr> ManagedStorage::follow_replaced_bytes() {
  auto& data = storage_.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  if (data.get_deleter() == &release_tag) {
    return std::nullopt;
  }
  auto replaced = std::move(data);
  fill(replaced.get());
  return replaced;
}

void ManagedStorage::empty(const std::string& why) {
  set_pointer(nullptr);
  set_unreadable(*storage_.unsafeGetStorageImpl(), why);
}

void ManagedStorage::disconnect(const std::string& why) {
  // Pairs with the acquire load in the dispatch fallback.
  tag_->listener.store(nullptr, std::memory_order_release);
  empty(why);
}

}  // namespace sherd::autograd
