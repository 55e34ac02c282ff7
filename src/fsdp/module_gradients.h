// SPDX-License-Identifier: Apache-2.0
//
// ModuleGradients manages placeholders: what `.grad()` of the module's parameters shows between two
// backwards while the gradients lie in slices. Without them LibTorch would silently skip undefined
// gradients:
//
//   reads and writes   (clip_grad_norm_(module.parameters(), ...), an optimizer over them) throw an
//                      error that names the remedy;
//   dropping them      (module.zero_grad()) clears the gradients of the slices.
//
// Placeholders are hidden before autograd adds to `.grad()`, and need no memory for elements.
// Thread rule: the owner's lock; operators from any thread. Mechanism: docs/design/autograd.md.
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
  // All are called without the owner's lock, on any thread.
  struct Callbacks {
    // A backward is about to add to `.grad()`: the owner calls hide(), and show() only when this
    // backward has ended. Called once for a graph task, or more often.
    std::function<void()> hide;
    // Throws if the parameter is no longer the tensor whose gradients reach the owner.
    std::function<void(int parameter)> check_identity;
    // The caller has dropped a placeholder; the owner asks was_dropped().
    std::function<void(int parameter, std::uint64_t showing)> dropped;
  };

  // `model` must outlive it.
  ModuleGradients(const ModelUnits& model, Callbacks callbacks);
  ~ModuleGradients() override;
  ModuleGradients(const ModuleGradients&) = delete;
  ModuleGradients& operator=(const ModuleGradients&) = delete;

  // Gives the parameter a placeholder, unless `.grad()` already has something. REQUIRES: no backward
  // is running for which `hide` was called; the parameter may have gradients.
  void show(int parameter);

  // Takes all placeholders away. Returns the parameters whose placeholder was already gone without
  // a call of `dropped`, because something else still refers to it.
  std::vector<int> hide();

  // Hides them and makes no more calls.
  void close();

  // Whether the placeholder of that showing is still the current one. After the call it is not, and
  // the caller clears the gradient that it stands for.
  bool was_dropped(int parameter, std::uint64_t showing);

  void begin_use(
      std::span<const autograd::ParameterUse> uses,
      const char* operator_name) override;
  void end_use(
      std::span<const autograd::ParameterUse> /*uses*/) noexcept override {}

 private:
  void before_accumulation();

  struct Item {
    std::unique_ptr<autograd::ManagedStorage> storage;  // Null: never shown.
    std::uint64_t showing = 0;  // 0: it was dropped, or there is none.
    std::shared_ptr<void> before_gradient;  // Null: it never needs gradients.
  };

  const ModelUnits& model_;
  const Callbacks callbacks_;
  std::vector<Item> items_;  // By parameter.
  std::uint64_t showings_ = 0;
  std::atomic<bool> shown_{false};  // Some was shown since the last hide().
  // The last graph task for which `hide` was called.
  std::atomic<int> hidden_for_{-1};
};

}  // namespace sherd::fsdp
