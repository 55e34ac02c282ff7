// SPDX-License-Identifier: Apache-2.0
//
// Notifications of the end of a backward. LibTorch's own callbacks fire early under reentrant
// checkpoints and not at all after an exception, so sherd installs a subclass of the autograd
// engine that sees the outermost backward from outside. Where another engine is installed already
// (a Python process), ForeignBackward says where backwards begin and end. In a backward that it does
// not bracket, the first arm() queues a callback with those two limits.
//
// A backward is reported to each listener that was armed before it on the same thread (by a
// training forward) or while it runs (by a use of a parameter or a gradient). autograd::grad is no
// backward. Thread rule: any thread. Mechanism: docs/design/autograd.md.
#pragma once

#include <exception>
#include <memory>
#include <string>

namespace sherd::autograd {

class BackwardListener {
 public:
  virtual ~BackwardListener() = default;

  // The outermost backward has ended; called on the thread that called backward(). `failure` is
  // null unless the backward threw. An exception from here reaches the caller of backward() once
  // every other listener has been called.
  virtual void backward_ended(std::exception_ptr failure) = 0;
};

// Installs the engine; further calls do nothing. Returns false where another one was there first.
bool install_backward_engine();

// Has `listener` called at the end of the backward that runs now, or else of the next outermost one
// of this thread; once, however often it is armed, and not if it is gone by then. Returns false
// when no call will come: inside autograd::grad, or before a backward of another engine where no
// ForeignBackward has been seen yet.
bool arm(const std::weak_ptr<BackwardListener>& listener);

// Whether operators of this thread build graphs: neither NoGradGuard nor inference mode is active.
bool records_gradients();

// Whether some thread is inside an outermost backward of sherd's engine, or inside one that is
// bracketed. A backward whose listeners
// are being called no longer counts.
bool any_backward();

// True on a thread that runs a node of some backward (or autograd::grad).
bool in_backward();

}  // namespace sherd::autograd
