// SPDX-License-Identifier: Apache-2.0
#include "access/backward.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

namespace sherd::access {
namespace {

using Listeners = std::vector<std::weak_ptr<BackwardListener>>;

void add_once(
    Listeners& listeners, const std::weak_ptr<BackwardListener>& added) {
  const bool known = std::any_of(
      listeners.begin(), listeners.end(),
      [&](const std::weak_ptr<BackwardListener>& other) {
        return !other.owner_before(added) && !added.owner_before(other);
      });
  if (!known) {
    listeners.push_back(added);
  }
}

// Armed on this thread by a training forward, waiting for its backward.
Listeners& waiting() {
  thread_local Listeners listeners;
  return listeners;
}

// One outermost backward under way.
struct Scope {
  std::thread::id thread;
  Listeners listeners;
};

// The scopes of all threads. Nodes run on the thread that called backward, on
// device threads, or on pool threads (deep reentrancy), so a thread-local
// alone would not do.
class Scopes {
 public:
  void begin(Scope* scope) {
    const std::lock_guard lock(mu_);
    scopes_.push_back(scope);
  }
  void end(Scope* scope) {
    const std::lock_guard lock(mu_);
    std::erase(scopes_, scope);
  }
  // Adds to the backward that runs on this thread; from a foreign thread to
  // the newest one. False when there is none.
  bool add(const std::weak_ptr<BackwardListener>& listener) {
    const std::lock_guard lock(mu_);
    if (scopes_.empty()) {
      return false;
    }
    auto own = std::find_if(
        scopes_.rbegin(), scopes_.rend(), [](const Scope* scope) {
          return scope->thread == std::this_thread::get_id();
        });
    add_once((own == scopes_.rend() ? scopes_.back() : *own)->listeners,
             listener);
    return true;
  }

 private:
  std::mutex mu_;
  std::vector<Scope*> scopes_;  // Guarded by mu_.
};

Scopes& scopes() {
  static Scopes all;
  return all;
}

void tell(const Listeners& listeners, const std::exception_ptr& failure) {
  std::exception_ptr first;
  for (const auto& weak : listeners) {
    if (auto listener = weak.lock()) {
      try {
        listener->backward_ended(failure);
      } catch (...) {
        first = first ? first : std::current_exception();
      }
    }
  }
  if (first && !failure) {
    std::rethrow_exception(first);
  }
}

class BackwardEngine final : public torch::autograd::Engine {
 public:
  BackwardEngine() = default;
  ~BackwardEngine() override { stop(); }

  torch::autograd::variable_list execute(
      const torch::autograd::edge_list& roots,
      const torch::autograd::variable_list& inputs,
      bool keep_graph,
      bool create_graph,
      bool accumulate_grad,
      const torch::autograd::edge_list& outputs) override {
    if (!accumulate_grad || in_backward()) {
      return Engine::execute(
          roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    }
    Scope scope{std::this_thread::get_id(), std::exchange(waiting(), {})};
    scopes().begin(&scope);
    torch::autograd::variable_list results;
    std::exception_ptr failure;
    try {
      results = Engine::execute(
          roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    } catch (...) {
      failure = std::current_exception();
    }
    scopes().end(&scope);
    tell(scope.listeners, failure);
    if (failure) {
      std::rethrow_exception(failure);
    }
    return results;
  }
};

torch::autograd::Engine& backward_engine() {
  static BackwardEngine engine;
  return engine;
}

bool engine_is_ours() {
  static const bool ours = [] {
    using torch::autograd::Engine;
    if (&Engine::get_default_engine() != &Engine::get_base_engine()) {
      return false;
    }
    torch::autograd::set_default_engine_stub(&backward_engine);
    return true;
  }();
  return ours;
}

// Somebody else's engine: an engine callback stands in for the scope's end.
void arm_by_callback(const std::weak_ptr<BackwardListener>& listener) {
  auto& queued = waiting();
  const auto size = queued.size();
  add_once(queued, listener);
  if (queued.size() == size && size > 0) {
    return;  // Queued already, in this backward.
  }
  torch::autograd::Engine::get_default_engine().queue_callback(
      [] { tell(std::exchange(waiting(), {}), nullptr); });
}

}  // namespace

void install_backward_engine() { (void)engine_is_ours(); }

bool in_backward() {
  return torch::autograd::get_current_graph_task_id() != -1;
}

bool arm(const std::weak_ptr<BackwardListener>& listener) {
  if (engine_is_ours()) {
    if (in_backward()) {
      return scopes().add(listener);
    }
    add_once(waiting(), listener);
  } else if (in_backward()) {
    arm_by_callback(listener);
  }
  return true;
}

}  // namespace sherd::access
