// SPDX-License-Identifier: Apache-2.0
//
// What `.grad()` of the module's parameters shows between two backwards. Their
// gradients lie in slices; the module has placeholders, so that what LibTorch
// does by way of the module does not go wrong in silence:
//
//   reads and writes   (clip_grad_norm_(module.parameters(), ...), an optimizer
//                      over them) throw a sentence that names the remedy;
//   dropping them      (module.zero_grad()) clears the gradients of the slices.
//
// They are hidden before autograd adds to `.grad()`, and cost memory for no
// element. Thread rule: the owner's lock; operators any thread.
// Mechanism: docs/design/access.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>
#include "autograd/managed_storage.h"
#include "fsdp/model_units.h"

namespace sherd::fsdp {

class ModuleGradients final : public autograd::ParameterUseListener {
 public:
  // Both without the owner's lock, and on any thread.
  struct Callbacks {
    // A backward is about to add to `.grad()`: hide().
    std::function<void()> hide;
    // Throws, naming what was done, when the parameter is not the tensor any
    // more whose backward is heard of.
    std::function<void(int parameter)> check_identity;
    // A placeholder was dropped, by who calls: ask was_dropped().
    std::function<void(int parameter, std::uint64_t showing)> dropped;
  };

  // `model` must outlive it.
  ModuleGradients(const ModelUnits& model, Callbacks callbacks);
  ~ModuleGradients() override;
  ModuleGradients(const ModuleGradients&) = delete;
  ModuleGradients& operator=(const ModuleGradients&) = delete;

  // Gives the parameter a placeholder, unless `.grad()` has something already.
  void show(int parameter);

  // Takes all placeholders away. Returns the parameters that had lost theirs
  // without being told of it, since somebody else refers to it.
  std::vector<int> hide();

  // Hides them and calls nobody any more.
  void close();

  // True when the placeholder of that showing is the present one; it is not
  // from now on, and the gradient it stands for is to be cleared.
  bool was_dropped(int parameter, std::uint64_t showing);

  void begin_use(std::span<const autograd::ParameterUse> uses, const char* operator_name)
      override;
  void end_use(std::span<const autograd::ParameterUse> /*uses*/) noexcept override {}

 private:
  struct Item {
    std::unique_ptr<autograd::ManagedStorage> storage;  // Null before the first.
    std::uint64_t showing = 0;  // 0: the placeholder was dropped, or none is.
  };

  const ModelUnits& model_;
  const Callbacks callbacks_;
  std::vector<Item> items_;  // By parameter.
  std::uint64_t showings_ = 0;
  std::atomic<bool> shown_{false};  // Since the last hide().
  std::vector<std::shared_ptr<void>> before_gradients_;
};

}  // namespace sherd::fsdp
