// SPDX-License-Identifier: Apache-2.0
//
// Scopes of C++ as `with` statements of Python.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <pybind11/functional.h>
#include <sherd/autograd/join.h>
#include <sherd/base/error.h>
#include "bindings.h"

namespace sherd::python {

// Something that lasts as long as a `with` statement.
class Scope {
 public:
  // Told whether an exception ends the statement.
  using End = std::function<void(bool failed)>;

  explicit Scope(std::function<End()> open) : open_(std::move(open)) {}
  void enter() {
    if (end_) {
      throw Error(
          "[python] expected one `with` statement at a time over a scope, "
          "found another one inside it; call the handle's method for each",
          ErrorCode::kFailedPrecondition);
    }
    end_ = open_();
  }
  void exit(bool failed) {
    if (const auto end = std::exchange(end_, nullptr)) {
      end(failed);
    }
  }

 private:
  std::function<End()> open_;
  End end_;
};

// Holds what `open` returns, an object that ends a scope when it is destroyed.
template <typename Open>
std::unique_ptr<Scope> make_scope(Open open) {
  return std::make_unique<Scope>([open = std::move(open)]() -> Scope::End {
    return [held = std::make_shared<decltype(open())>(open())](bool) {};
  });
}

// The method join() of a handle, whose scope ends by finish() unless an exception ends it.
template <typename Class>
void bind_join(Class& type) {
  using Self = typename Class::type;
  type.def(
      "join",
      [](Self& self, std::function<void()> after_backward,
         bool divide_by_initial_world_size, bool throw_on_early_termination) {
        const JoinOptions options{
            .divide_by_initial_world_size = divide_by_initial_world_size,
            .throw_on_early_termination = throw_on_early_termination};
        return std::make_unique<Scope>(
            [&self, options, after_backward]() -> Scope::End {
              auto scope = std::make_shared<JoinScope>(self.join(options));
              return [scope, after_backward](bool failed) {
                if (!failed) {
                  scope->finish(after_backward);
                }
              };
            });
      },
      py::keep_alive<0, 1>());
}

}  // namespace sherd::python
