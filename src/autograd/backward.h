// SPDX-License-Identifier: Apache-2.0
//
// Where a backward begins and ends. LibTorch's own callbacks fire early under
// reentrant checkpoints and not at all after an exception, so sherd installs a
// subclass of the autograd engine that sees the outermost backward from outside
// it. Where somebody else's engine is installed (a Python process), the first
// arm() of a backward queues a callback instead, with those two limits; what is
// armed before a backward is then not told at all.
//
// A backward belongs to a listener that was armed before it on the same thread
// (a training forward), or that is armed while it runs (a parameter visited, a
// gradient arrived). autograd::grad is never a backward here.
// Thread rule: any thread. Mechanism: docs/design/access.md.
#pragma once

#include <exception>
#include <memory>
#include <string>

namespace sherd::autograd {

class BackwardListener {
 public:
  virtual ~BackwardListener() = default;

  // The outermost backward ended, on the thread that called it; `failure` is
  // null unless it threw. What this throws reaches the caller of backward(),
  // after every other listener was told.
  virtual void backward_ended(std::exception_ptr failure) = 0;
};

// Installs the engine; further calls do nothing. False where somebody else's
// was there first.
bool install_backward_engine();

// `listener` will be told of the end of the backward that runs now, or else of
// the next outermost one of this thread. Arming twice is arming once. A
// listener that is gone by then is skipped. False when there is nothing to be
// told of: inside autograd::grad, or before a backward of somebody else's
// engine.
bool arm(const std::weak_ptr<BackwardListener>& listener);

// The first line of what it says, for peers; never empty, which would mean that
// nothing failed.
std::string reason_of(const std::exception_ptr& failure);

// Whether operators of this thread build graphs: not under NoGradGuard, nor in
// inference mode.
bool records_gradients();

// Whether some thread is inside an outermost backward of sherd's engine. Not so
// on the thread that tells listeners of the end of one, unless others are.
bool any_backward();

// True on a thread that runs a node of some backward (or autograd::grad).
bool in_backward();

}  // namespace sherd::autograd
