// SPDX-License-Identifier: Apache-2.0
//
// KeyedParameters gives parameters, which keep their place, the parameter key, a storage tag and a
// gradient hook for as long as a handle lives, so that they announce their own use. Thread rule:
// one thread, while no operator uses them.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>
#include <ATen/core/Tensor.h>
#include "autograd/gradient_hook.h"
#include "autograd/managed_storage.h"
#include "ddp/replicated_model.h"

namespace sherd::ddp {

class KeyedParameters {
 public:
  // `casts`: what operators that use them cast.
  explicit KeyedParameters(
      const std::vector<ModuleTensor>& parameters,
      const autograd::ActivationCasts& casts = {});
  // Gives them back to plain LibTorch.
  ~KeyedParameters();
  KeyedParameters(const KeyedParameters&) = delete;
  KeyedParameters& operator=(const KeyedParameters&) = delete;

  // `listener` must outlive this; `callback_for`, unless null, makes the gradient hook of each
  // parameter.
  void take(
      autograd::ParameterUseListener& listener,
      std::function<autograd::GradientCallback(std::size_t)> callback_for);
  // Gives parameters their gradient hook again, where a user's took its place, and returns these
  // parameters. REQUIRES: no backward uses them.
  std::vector<std::size_t> set_gradient_hooks();
  void release();

  const std::vector<ModuleTensor>& parameters() const { return parameters_; }

  // The name of the first parameter in that storage, by the number that the listener is told.
  // REQUIRES: it is one of these parameters.
  const std::string& name_in(int storage) const {
    const auto found =
        std::ranges::find(storage_of_, static_cast<std::size_t>(storage));
    return parameters_[static_cast<std::size_t>(found - storage_of_.begin())]
        .name;
  }

  // Takes over the bytes of storages that were replaced in place, as share_memory() of Python does.
  // Throws Error if a parameter was given another storage; names the first one, and the remedy.
  void check() const;

  // Makes sure that a graph of the old values is not run backward over the new ones.
  void bump_version(std::size_t parameter) const {
    parameters_[parameter].tensor.unsafeGetTensorImpl()->bump_version();
  }

  // The parameter's values as a plain 1-D tensor in the order of memory.
  at::Tensor values(std::size_t parameter) const;

 private:
  struct Storage {
    c10::Storage plain;  // Keeps the bytes alive.
    std::unique_ptr<autograd::ManagedStorage> managed;
  };
  const Storage& storage_of(std::size_t parameter) const {
    return storages_[storage_of_[parameter]];
  }
  void follow_replaced_bytes() const;

  const std::vector<ModuleTensor> parameters_;
  const autograd::ActivationCasts casts_;
  std::vector<Storage> storages_;
  std::vector<std::size_t> storage_of_;  // By parameter; empty before take().
  std::function<autograd::GradientCallback(std::size_t)> callback_for_;
};

}  // namespace sherd::ddp
