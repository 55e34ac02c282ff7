// SPDX-License-Identifier: Apache-2.0
//
// ManagedStorage is the storage of one flat whose bytes come and go while the
// tensors on it stay: parameters, their views, what autograd saved of them. A
// StorageTag hangs on it, so that whoever meets a tensor finds out in O(1)
// whose it is. While empty, every raw access throws a sentence that names the
// remedy instead of reading freed memory.
//
// Thread rule: fill() and empty() by one thread at a time and never while an
// operator uses the storage (the ParameterUseListener's pins see to that); tag reads from
// any thread. Mechanism: docs/design/access.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <ATen/core/Tensor.h>

namespace sherd::autograd {

class ParameterUseListener;

// What becomes of activations of another dtype that meet a parameter in a
// matrix product, a norm or the like.
enum class ActivationCast {
  kNone,  // LibTorch refuses them or not.
  kToParameterDtype,       // They are cast to the parameter's dtype (mixed precision).
};

// Lives as long as a storage or a ManagedStorage refers to it.
struct StorageTag {
  // Null once the model's handle is gone. Written when no operator runs.
  std::atomic<ParameterUseListener*> listener{nullptr};
  int unit = 0;
  int flat = 0;
  ActivationCast activations = ActivationCast::kNone;
  std::atomic<int> references{0};
};

// One tensor argument of an operator that lies in a managed storage.
struct ParameterUse {
  const StorageTag* tag = nullptr;
  const c10::TensorImpl* tensor = nullptr;  // Valid during begin_use() only.
  bool written = false;  // The operator's schema says it writes this argument.
};

// What an operator does with managed storages; implemented by a runtime.
// Thread rule: any thread, also several at once.
class ParameterUseListener {
 public:
  virtual ~ParameterUseListener() = default;

  // Before an operator runs that uses these storages, all of this listener
  // and never empty. On return each is filled and stays so until leave(). A
  // throw refuses the operator; end_use() is then not called.
  virtual void begin_use(
      std::span<const ParameterUse> uses, const char* operator_name) = 0;

  // After the operator, also when it threw. Same uses.
  virtual void end_use(std::span<const ParameterUse> uses) noexcept = 0;
};

// The tag of a tensor's storage, or null when it is not managed.
const StorageTag* tag_of(const at::Tensor& tensor);

class ManagedStorage {
 public:
  // An empty storage of `nbytes` on `device`, tagged (unit, flat).
  ManagedStorage(
      ParameterUseListener* listener,
      int unit,
      int flat,
      std::int64_t nbytes,
      c10::Device device,
      ActivationCast activations = ActivationCast::kNone);
  ~ManagedStorage();  // Disconnects what tensors are left: see disconnect().
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
  void disconnect(const std::string& why);

 private:
  void set_pointer(void* bytes);

  StorageTag* tag_;
  c10::Storage storage_;
  bool filled_ = false;
};

}  // namespace sherd::autograd
