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

#include <cstdint>
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

  // An outermost backward for which note_writes() was called has ended; called like
  // backward_ended(), after the calls of that.
  virtual void writes_ended() {}
};

// If the outermost backward of this process that has ended last threw, its number, which no other
// backward has; otherwise 0. Backwards of another engine count if a ForeignBackward brackets them.
std::uint64_t broken_backward();

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

// Whether what this thread computes is part of a graph: records_gradients(), or it runs inside a
// FunctionForward.
bool in_graph();

// Notes that the running backward is about to write gradients that `listener` watches, and makes
// its end call writes_ended(). Does nothing if no end is known: after the backward has failed, in
// autograd::grad, and in a backward of another engine that nobody brackets. If several are
// bracketed and the node runs on a thread of the engine, it may be any of them, and all count.
void note_writes(const std::weak_ptr<BackwardListener>& listener);

// Whether an outermost backward is running, on any thread, that has noted so. A backward whose
// listeners are being called no longer counts.
bool writes_under_way(const std::weak_ptr<BackwardListener>& listener);

// True on a thread that is running a node of some backward (or of autograd::grad).
bool in_backward();

// The number of that backward's graph task, which no other task of this process has; -1 if there is
// none. A reentrant backward is a task of its own.
int running_task();

}  // namespace sherd::autograd
