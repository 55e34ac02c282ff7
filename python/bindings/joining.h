// SPDX-License-Identifier: Apache-2.0
//
// A join scope as a `with` statement, which ends by finish() unless an exception ends it.
#pragma once

#include <functional>
#include <memory>
#include <pybind11/functional.h>
#include <sherd/autograd/join.h>
#include "bindings.h"

namespace sherd::python {

class Joining {
 public:
  Joining(std::function<JoinScope()> open, std::function<void()> after_backward)
      : open_(std::move(open)), after_backward_(std::move(after_backward)) {}
  void enter() { scope_ = std::make_unique<JoinScope>(open_()); }
  void exit(bool failed) {
    const auto scope = std::exchange(scope_, nullptr);
    if (scope && !failed) {
      scope->finish(after_backward_);
    }
  }

 private:
  std::function<JoinScope()> open_;
  std::function<void()> after_backward_;
  std::unique_ptr<JoinScope> scope_;
};

// The method join() of a handle. `handle_of`: Self& to what has join().
template <typename Class, typename HandleOf>
void bind_join(Class& type, HandleOf handle_of) {
  using Self = typename Class::type;
  type.def(
      "join",
      [handle_of](
          Self& self, std::function<void()> after_backward,
          bool divide_by_initial_world_size, bool throw_on_early_termination) {
        const JoinOptions options{
            .divide_by_initial_world_size = divide_by_initial_world_size,
            .throw_on_early_termination = throw_on_early_termination};
        return std::make_unique<Joining>(
            [&self, handle_of, options] {
              return handle_of(self).join(options);
            },
            std::move(after_backward));
      },
      py::keep_alive<0, 1>());
}

}  // namespace sherd::python
