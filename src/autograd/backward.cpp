// SPDX-License-Identifier: Apache-2.0
#include "autograd/backward.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <sherd/autograd/touch.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include "autograd/gradient_hook.h"
#include "autograd/saved_tensors.h"

namespace sherd::autograd {
namespace {

using Listeners = std::vector<std::weak_ptr<BackwardListener>>;

bool contains(
    const Listeners& listeners,
    const std::weak_ptr<BackwardListener>& listener) {
  return std::ranges::any_of(listeners, [&](const auto& other) {
    return !other.owner_before(listener) && !listener.owner_before(other);
  });
}

void add_once(
    Listeners& listeners, const std::weak_ptr<BackwardListener>& added) {
  if (!contains(listeners, added)) {
    listeners.push_back(added);
  }
}

// The listeners that training forwards of this thread have armed.
Listeners& waiting() {
  thread_local Listeners listeners;
  return listeners;
}

// One outermost backward that is running.
struct OutermostBackward {
  Listeners listeners;
  Listeners writes = {};  // The listeners whose gradients it writes.
  std::thread::id thread = std::this_thread::get_id();
};

// Which backward each running graph task belongs to. Nodes run on the thread that called backward,
// on device threads, or on pool threads (deep reentrancy), so a thread-local variable would not do;
// the graph task is known on all of them. A task of autograd::grad is in here only within a
// backward.
class BackwardRegistry {
 public:
  void add_task(int task, OutermostBackward* scope) {
    const std::lock_guard lock(mu_);
    by_task_.emplace(task, scope);
  }
  // The task begins within a node of `parent` and belongs to the same backward, or to none if that
  // has ended: after a failure, nodes of other devices may still run.
  void adopt_task(int parent, int task) {
    const std::lock_guard lock(mu_);
    if (auto* scope = find(parent)) {
      by_task_.emplace(task, scope);
    }
  }
  void end(OutermostBackward* scope) {
    const std::lock_guard lock(mu_);
    std::erase_if(
        by_task_, [scope](const auto& task) { return task.second == scope; });
  }
  // Returns false if the task belongs to no backward.
  bool add(int task, const std::weak_ptr<BackwardListener>& listener) {
    const std::lock_guard lock(mu_);
    auto* scope = find(task);
    if (scope != nullptr) {
      add_once(scope->listeners, listener);
    }
    return scope != nullptr;
  }
  void note_writes(int task, const std::weak_ptr<BackwardListener>& listener) {
    const std::lock_guard lock(mu_);
    if (auto* scope = find(task)) {
      add_once(scope->writes, listener);
    }
  }
  bool writes_under_way(const std::weak_ptr<BackwardListener>& listener) const {
    const std::lock_guard lock(mu_);
    return std::ranges::any_of(by_task_, [&](const auto& task) {
      return contains(task.second->writes, listener);
    });
  }

 private:
  // Returns null if the task belongs to no backward. REQUIRES: mu_ is held.
  OutermostBackward* find(int task) const {
    const auto found = by_task_.find(task);
    return found == by_task_.end() ? nullptr : found->second;
  }

  mutable std::mutex mu_;
  std::unordered_map<int, OutermostBackward*> by_task_;  // Guarded by mu_.
};

BackwardRegistry& backward_registry() {
  static BackwardRegistry all;
  return all;
}

// The outermost backward that this thread is about to start: execute() sets it for its own
// execute_with_graph_task(), which knows the task.
OutermostBackward*& starting() {
  thread_local OutermostBackward* scope = nullptr;
  return scope;
}

// How many FunctionForwards this thread is in.
int& function_forwards() {
  thread_local int depth = 0;
  return depth;
}

std::atomic<std::uint64_t>& broken() {
  static std::atomic<std::uint64_t> number = 0;
  return number;
}

void note_end(bool threw) {
  static std::atomic<std::uint64_t> ends = 0;
  const auto number = ++ends;
  broken() = threw ? number : 0;
}

void notify(
    const Listeners& listeners,
    const std::exception_ptr& failure,
    const Listeners& writes = {}) {
  std::exception_ptr first;
  const auto call = [&first](const Listeners& called, const auto& member) {
    for (const auto& weak : called) {
      if (auto listener = weak.lock()) {
        try {
          member(*listener);
        } catch (...) {
          first = first ? first : std::current_exception();
        }
      }
    }
  };
  call(listeners, [&](BackwardListener& listener) {
    listener.backward_ended(failure);
  });
  call(writes, [](BackwardListener& listener) { listener.writes_ended(); });
  note_end(failure || first);
  if (first && !failure) {
    std::rethrow_exception(first);
  }
}

// The bracketed backwards of another engine.
class ForeignBackwards {
 public:
  void begin(OutermostBackward* scope) {
    const std::lock_guard lock(mu_);
    seen_ = true;
    under_way_.push_back(scope);
  }
  void end(OutermostBackward* scope) {
    const std::lock_guard lock(mu_);
    std::erase(under_way_, scope);
  }
  bool seen() const { return seen_; }
  // Adds the listener to the bracketed backward of this thread or, if one of the engine's own
  // threads runs the node, as for devices and in deep reentrancy, to the only one. Returns false if
  // there is none. `grad`: the node belongs to autograd::grad.
  bool add(bool grad, const std::weak_ptr<BackwardListener>& listener) {
    const std::lock_guard lock(mu_);
    const auto own = std::ranges::find(
        under_way_, std::this_thread::get_id(), &OutermostBackward::thread);
    const bool only = under_way_.size() == 1 && !grad;
    if (own == under_way_.end() && !only) {
      return false;
    }
    add_once(
        (own == under_way_.end() ? under_way_.front() : *own)->listeners,
        listener);
    return true;
  }
  // `grad` as above.
  void note_writes(bool grad, const std::weak_ptr<BackwardListener>& listener) {
    const std::lock_guard lock(mu_);
    const auto own = std::this_thread::get_id();
    const bool here = std::ranges::any_of(
        under_way_, [own](const auto* scope) { return scope->thread == own; });
    for (auto* scope : under_way_) {
      if (here ? scope->thread == own : !grad) {
        add_once(scope->writes, listener);
      }
    }
  }
  bool writes_under_way(const std::weak_ptr<BackwardListener>& listener) const {
    const std::lock_guard lock(mu_);
    return std::ranges::any_of(under_way_, [&](const auto* scope) {
      return contains(scope->writes, listener);
    });
  }

 private:
  mutable std::mutex mu_;
  std::vector<OutermostBackward*> under_way_;  // Guarded by mu_.
  std::atomic<bool> seen_ = false;
};

ForeignBackwards& foreign_backwards() {
  static ForeignBackwards all;
  return all;
}

// The root is an intrusive_ptr or, in older versions of LibTorch, a shared_ptr.
using RootNode =
    decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

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
    start_threads();
    if (!accumulate_grad || in_backward()) {
      return Engine::execute(
          roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    }
    follow_parameters();
    OutermostBackward scope{.listeners = std::exchange(waiting(), {})};
    starting() = &scope;
    torch::autograd::variable_list results;
    std::exception_ptr failure;
    try {
      results = Engine::execute(
          roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
    } catch (...) {
      failure = std::current_exception();
    }
    starting() = nullptr;  // Still set if no task was ever made.
    backward_registry().end(&scope);
    notify(scope.listeners, failure, scope.writes);
    if (failure) {
      std::rethrow_exception(failure);
    }
    return results;
  }

  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task,
      RootNode root,
      torch::autograd::InputBuffer&& inputs) override {
    const int id = static_cast<int>(task->id_);
    if (in_backward()) {
      backward_registry().adopt_task(
          torch::autograd::get_current_graph_task_id(), id);
    } else if (auto* scope = std::exchange(starting(), nullptr)) {
      backward_registry().add_task(id, scope);
    }
    return Engine::execute_with_graph_task(
        task, std::move(root), std::move(inputs));
  }

  SavedTensorHooks get_default_saved_variable_hooks() override {
    return SavedTensorHookScope::hooks();
  }

 private:
  // LibTorch starts device and pool threads for the first engine of a process that runs. If that
  // was another one, because a backward ran before our engine was installed, deep reentrancy would
  // find a null pool here.
  void start_threads() {
    std::call_once(started_, [this] {
      initialize_device_threads_pool();
      if (thread_pool_shared_ == nullptr) {
        start_device_threads();
      }
    });
  }

  std::once_flag started_;
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

// autograd::grad captures gradients, whereas backward() accumulates them.
bool in_autograd_grad() {
  const auto* nodes = torch::autograd::get_current_graph_task_exec_info();
  return nodes != nullptr && std::ranges::any_of(*nodes, [](const auto& node) {
           return node.second.captures_ != nullptr;
         });
}

// With another engine, a callback of the graph task is used instead of the end of the scope. The
// callback owns the listeners, so those of a backward that failed, whose callbacks never run, are
// dropped with its graph task.
class GraphTaskCallbacks {
 public:
  bool add(int task, const std::weak_ptr<BackwardListener>& listener) {
    const std::lock_guard lock(mu_);
    std::erase_if(
        by_task_, [](const auto& entry) { return entry.second.expired(); });
    auto listeners = by_task_[task].lock();
    if (!listeners && in_autograd_grad()) {
      return false;  // Its expired entry is erased by the next call.
    }
    if (!listeners) {
      listeners = std::make_shared<Listeners>();
      by_task_[task] = listeners;
      torch::autograd::Engine::get_default_engine().queue_callback(
          [this, task, listeners] { notify(take(task, *listeners), nullptr); });
    }
    add_once(*listeners, listener);
    return true;
  }

 private:
  Listeners take(int task, Listeners& listeners) {
    const std::lock_guard lock(mu_);
    by_task_.erase(task);
    return std::exchange(listeners, {});
  }

  std::mutex mu_;
  // mu_ guards the map and the lists.
  std::unordered_map<int, std::weak_ptr<Listeners>> by_task_;
};

GraphTaskCallbacks& graph_task_callbacks() {
  static GraphTaskCallbacks all;
  return all;
}

}  // namespace

bool install_backward_engine() { return engine_is_ours(); }

std::uint64_t broken_backward() { return broken(); }

bool records_gradients() {
  return at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled();
}

bool in_graph() { return function_forwards() > 0 || records_gradients(); }

void note_writes(const std::weak_ptr<BackwardListener>& listener) {
  if (engine_is_ours()) {
    backward_registry().note_writes(running_task(), listener);
  } else {
    foreign_backwards().note_writes(in_autograd_grad(), listener);
  }
}

bool writes_under_way(const std::weak_ptr<BackwardListener>& listener) {
  return engine_is_ours() ? backward_registry().writes_under_way(listener)
                          : foreign_backwards().writes_under_way(listener);
}

bool in_backward() { return running_task() != -1; }

int running_task() { return torch::autograd::get_current_graph_task_id(); }

bool arm(const std::weak_ptr<BackwardListener>& listener) {
  const bool ours = engine_is_ours();
  if (in_backward()) {
    const int task = running_task();
    return ours ? backward_registry().add(task, listener)
                : foreign_backwards().add(in_autograd_grad(), listener) ||
            graph_task_callbacks().add(task, listener);
  }
  const bool end_is_seen = ours || foreign_backwards().seen();
  if (end_is_seen) {
    add_once(waiting(), listener);
  }
  return end_is_seen;
}

}  // namespace sherd::autograd

namespace sherd {

using autograd::OutermostBackward;

struct ForeignBackward::State {
  OutermostBackward scope;
};

ForeignBackward::ForeignBackward() {
  if (!autograd::engine_is_ours() && !autograd::in_backward()) {
    state_ = std::make_unique<State>();
    state_->scope.listeners = std::exchange(autograd::waiting(), {});
    autograd::foreign_backwards().begin(&state_->scope);
  }
}

ForeignBackward::~ForeignBackward() {
  end(std::make_exception_ptr(std::runtime_error("backward did not return")));
}

void ForeignBackward::end(const std::exception_ptr& failure) {
  if (const auto state = std::move(state_)) {
    autograd::foreign_backwards().end(&state->scope);
    autograd::notify(state->scope.listeners, failure, state->scope.writes);
  }
}

FunctionForward::FunctionForward() { ++autograd::function_forwards(); }

FunctionForward::~FunctionForward() { --autograd::function_forwards(); }

}  // namespace sherd
