// SPDX-License-Identifier: Apache-2.0
//
// ManagedStorage is the storage of one flat whose bytes come and go while the
// tensors on it stay: parameters, their views, what autograd saved of them. A
// StorageTag hangs on it, so that whoever meets a tensor finds out in O(1)
// whose it is. While empty, every raw access throws a sentence that names the
// remedy instead of reading freed memory.
//
// Thread rule: fill() and empty() by one thread at a time and never while an
// operator uses the storage (the Listener's pins see to that); tag reads from
// any thread. Mechanism: docs/design/access.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <ATen/core/Tensor.h>

namespace sherd::access {

class Listener;

// What becomes of activations of another dtype that meet a parameter in a
// matrix product, a norm or the like.
enum class Activations {
  kAsTheyAre,  // LibTorch refuses them or not.
  kCast,       // They are cast to the parameter's dtype (mixed precision).
};

// Lives as long as a storage or a ManagedStorage refers to it.
struct StorageTag {
  // Null once the model's handle is gone. Written when no operator runs.
  std::atomic<Listener*> listener{nullptr};
  int unit = 0;
  int flat = 0;
  Activations activations = Activations::kAsTheyAre;
  std::atomic<int> references{0};
};

// One tensor argument of an operator that lies in a managed storage.
struct Touch {
  const StorageTag* tag = nullptr;
  const c10::TensorImpl* tensor = nullptr;  // Valid during enter() only.
  bool written = false;  // The operator's schema says it writes this argument.
};

// What an operator does with managed storages; implemented by a runtime.
// Thread rule: any thread, also several at once.
class Listener {
 public:
  virtual ~Listener() = default;

  // Before an operator runs that touches these storages, all of this listener
  // and never empty. On return each is filled and stays so until leave(). A
  // throw refuses the operator; leave() is then not called.
  virtual void enter(
      std::span<const Touch> touches, const char* operator_name) = 0;

  // After the operator, also when it threw. Same touches.
  virtual void leave(std::span<const Touch> touches) noexcept = 0;
};

// The tag of a tensor's storage, or null when it is not managed.
const StorageTag* tag_of(const at::Tensor& tensor);

class ManagedStorage {
 public:
  // An empty storage of `nbytes` on `device`, tagged (unit, flat).
  ManagedStorage(
      Listener* listener,
      int unit,
      int flat,
      std::int64_t nbytes,
      c10::Device device,
      Activations activations = Activations::kAsTheyAre);
  ~ManagedStorage();  // Orphans what tensors are left: see orphan().
  ManagedStorage(const ManagedStorage&) = delete;
  ManagedStorage& operator=(const ManagedStorage&) = delete;

  const c10::Storage& storage() const { return storage_; }
  bool filled() const { return filled_; }

  // Tensors on the storage see `bytes` from now on. Version counters do not
  // move. REQUIRES: at least nbytes long, valid until empty().
  void fill(void* bytes);

  // Raw access to tensors on the storage throws `why` from now on.
  void empty(const std::string& why);

  // Cuts the storage off its listener for good: every operator on it throws.
  void orphan(const std::string& why);

 private:
  void set_pointer(void* bytes);

  StorageTag* tag_;
  c10::Storage storage_;
  bool filled_ = false;
};

}  // namespace sherd::access
