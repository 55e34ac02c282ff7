// SPDX-License-Identifier: Apache-2.0
//
// Notifications of the end of a backward. LibTorch's own callbacks fire too early under reentrant
// checkpoints and not at all after an exception, so sherd installs a subclass of the autograd
// engine that sees the outermost backward from outside. If another engine is already installed (a
// Python process), ForeignBackward says where backwards begin and end. In a backward that it does
// not bracket, the first arm() queues one of LibTorch's callbacks, with those two limitations.
//
// A backward is reported to each listener that was armed before it on the same thread (by a
// training forward) or while it runs (by a use of a parameter or a gradient). autograd::grad does
// not count as a backward. Thread rule: any thread. Mechanism: docs/design/autograd.md.
#pragma once

#include <exception>
#include <memory>

namespace sherd::autograd {

class BackwardListener {
 public:
  virtual ~BackwardListener() = default;

  // The outermost backward has ended; called on the thread that called backward(). `failure` is
  // null unless the backward threw. An exception thrown here reaches the caller of backward() after
  // every other listener was called.
  virtual void backward_ended(std::exception_ptr failure) = 0;
};

// Installs the engine; further calls do nothing. Returns false if another engine was installed
// first.
bool install_backward_engine();

// Makes the end of the running backward, or else of the next outermost one of this thread, call
// `listener`: once, however often it is armed, and not if it no longer exists then. Returns false
// if no call will come: inside autograd::grad, or before a backward of another engine if no
// ForeignBackward has been seen yet.
bool arm(const std::weak_ptr<BackwardListener>& listener);

// Whether operators on this thread build graphs: neither NoGradGuard nor inference mode is active.
bool records_gradients();

// Whether some thread is inside an outermost backward, either of sherd's engine or bracketed. A
// backward whose listeners are being called no longer counts.
bool any_backward();

// True on a thread that is running a node of some backward (or of autograd::grad).
bool in_backward();

}  // namespace sherd::autograd
