// SPDX-License-Identifier: Apache-2.0
//
// ManagedStorage is the storage of one flat, whose bytes come and go while the tensors on it stay:
// parameters, their views, and what autograd saved of them. Its StorageTag leads from any such
// tensor to the unit and the listener in O(1). While the storage is empty, every raw access throws
// an error that names the remedy, instead of reading freed memory.
//
// Thread rule: one thread at a time calls fill() and empty(), never while an operator uses the
// storage (the listener pins it); tags are read from any thread. Mechanism:
// docs/design/autograd.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <ATen/core/Tensor.h>

namespace sherd::autograd {

class ParameterUseListener;

// What is cast in matrix products, norms and the like on a parameter (mixed precision).
struct ActivationCasts {
  // Casts the activations that it meets to the parameter's dtype. If false, LibTorch decides.
  bool inputs = false;
  // Casts what the operator returns to this dtype, also for an embedding. Unset: no cast.
  std::optional<c10::ScalarType> outputs = std::nullopt;
  // Casts the parameter itself to this dtype, and what it meets. Autograd records the cast, so the
  // gradient comes back in the parameter's own dtype. An embedding casts only its rows. Unset: no
  // cast.
  std::optional<c10::ScalarType> parameters = std::nullopt;

  bool operator==(const ActivationCasts&) const = default;
};

// The owner of a storage. Lives as long as a storage or a ManagedStorage refers to it.
struct StorageTag {
  // Null once the model's handle is gone. Written while no operator runs.
  std::atomic<ParameterUseListener*> listener{nullptr};
  int unit = 0;
  int flat = 0;
  ActivationCasts casts = {};
  // If defined, a 1-D tensor whose elements operators use instead of those at the same offsets in
  // the storage. It may have another dtype. Written while no operator runs.
  at::Tensor instead = {};
  std::atomic<int> references{0};
};

// One tensor argument of an operator that lies in a managed storage.
struct ParameterUse {
  const StorageTag* tag = nullptr;
  const c10::TensorImpl* tensor = nullptr;  // Valid only during begin_use().
  bool written = false;  // The operator's schema says it writes this argument.
};

// Is called for each operator that uses managed storages; engines implement it. Thread rule: any
// thread, also several at once.
class ParameterUseListener {
 public:
  virtual ~ParameterUseListener() = default;

  // Called before an operator that uses these storages, all of which have this listener; `uses` is
  // never empty. When it returns, each storage is filled, and stays so until end_use(). An
  // exception refuses the operator; end_use() is not called then.
  virtual void begin_use(
      std::span<const ParameterUse> uses, const char* operator_name) = 0;

  // Called with the same uses, at the same address, after the operator, also when it threw.
  virtual void end_use(std::span<const ParameterUse> uses) noexcept = 0;
};

// The tag of a tensor's storage, or null if the storage is not managed.
const StorageTag* tag_of(const at::Tensor& tensor);

// Whether the tensor's storage is managed and was disconnected: its bytes are gone.
bool is_disconnected(const at::Tensor& tensor);
// Throws Error "[`part`] parameter `name` has no values any more ..." if so.
void check_has_values(
    const char* part, const std::string& name, const at::Tensor& tensor);

class ManagedStorage {
 public:
  // An empty storage of `nbytes` on `device`, tagged (unit, flat).
  ManagedStorage(
      ParameterUseListener* listener,
      int unit,
      int flat,
      std::int64_t nbytes,
      c10::Device device,
      const ActivationCasts& casts = {});
  ~ManagedStorage();  // Disconnects the remaining tensors.
  ManagedStorage(const ManagedStorage&) = delete;
  ManagedStorage& operator=(const ManagedStorage&) = delete;

  const c10::Storage& storage() const { return storage_; }

  // From now on tensors on the storage see `bytes`; version counters do not change. REQUIRES:
  // `bytes` has the length of the storage and is valid until empty().
  void fill(void* bytes);

  // Makes operators use the elements of `flat` instead, or those of the storage again if `flat` is
  // undefined. REQUIRES: no operator on the storage builds a graph meanwhile.
  void show_instead(const at::Tensor& flat) { tag_->instead = flat; }

  // If something has replaced the bytes of the storage in place since fill(), as share_memory() of
  // Python does, fills the storage with the new bytes and returns their owner. Nothing otherwise.
  // REQUIRES: the storage is filled.
  std::optional<c10::DataPtr> follow_replaced_bytes();

  // Makes raw access to tensors on the storage throw `why`.
  void empty(const std::string& why);

  // Separates the storage from its listener for good: from then on every operator on it throws
  // `why`.
  void disconnect(const std::string& why);

 private:
  void set_pointer(void* bytes);

  StorageTag* tag_;
  c10::Storage storage_;
};

}  // namespace sherd::autograd
