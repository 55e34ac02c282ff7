// SPDX-License-Identifier: Apache-2.0
//
// Callbacks that users of a backend register under numbers of their own, such as c10d's abort and
// completion hooks. Thread rule: any thread. Hooks run without the table's lock, so they may add
// and remove hooks; a hook that is removed while it runs elsewhere runs to its end.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace sherd::c10d_shm {

template <typename... Arguments>
class HookTable {
 public:
  using Hook = std::function<void(Arguments...)>;

  // Replaces the hook with this `id`, if any.
  void set(std::int64_t id, Hook hook) {
    const std::lock_guard lock(mutex_);
    hooks_[id] = std::move(hook);
  }

  // Does nothing if there is no hook with that number.
  void remove(std::int64_t id) {
    const std::lock_guard lock(mutex_);
    hooks_.erase(id);
  }

  // Calls all hooks in the order of their numbers, and returns the exceptions that they threw: a
  // failing hook prevents neither the others nor the backend from going on.
  std::vector<std::exception_ptr> run(Arguments... arguments) const {
    std::unique_lock lock(mutex_);
    const auto hooks = hooks_;
    lock.unlock();
    std::vector<std::exception_ptr> failures;
    for (const auto& [id, hook] : hooks) {
      try {
        hook(arguments...);
      } catch (...) {
        failures.push_back(std::current_exception());
      }
    }
    return failures;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::int64_t, Hook> hooks_;
};

}  // namespace sherd::c10d_shm
