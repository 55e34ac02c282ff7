// SPDX-License-Identifier: Apache-2.0
//
// Error is what sherd throws: for a mistake of the caller (a wrong argument, calls in the wrong
// order) and, from calls that cannot return a status, for an operation that failed (a rank was
// lost, a deadline passed). what() is one sentence that starts with the part of sherd in brackets
// and says what was expected and what was found. Unlike c10::Error it carries no C++ backtrace,
// which would bury the sentence. Thread rule: a value.
//
// HandleState makes an Error of a call of a handle that was moved from. Thread rule: its pointer's.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace sherd {

enum class ErrorCode {
  kInvalidArgument,     // The call can never succeed as written.
  kFailedPrecondition,  // The call is right, but not at this moment.
  kPeerLost,            // Another rank died or closed its connection.
  kPeerMismatch,        // Another rank does something different from this one.
  kDeadlineExceeded,    // No answer came in time.
  kUnavailable,         // A file, port or other resource is not available.
  kAborted,             // Another rank gave up this step and said why.
};

class Error : public std::runtime_error {
 public:
  explicit Error(
      const std::string& message, ErrorCode code = ErrorCode::kInvalidArgument)
      : std::runtime_error(message), code_(code) {}

  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// "[part] Class" as a template argument.
template <std::size_t kSize>
struct HandleName {
  // NOLINTNEXTLINE(google-explicit-constructor): a literal becomes one.
  constexpr HandleName(const char (&name)[kSize]) {
    for (std::size_t i = 0; i < kSize; ++i) {
      text[i] = name[i];
    }
  }

  char text[kSize] = {};
};

// Throws the Error of such a call.
[[noreturn]] void throw_moved_from(const char* handle);

// The state of a handle that can be moved, which may then only be destroyed or assigned to. The
// operators throw Error after the move.
template <typename Pointer, HandleName kName>
class HandleState {
 public:
  HandleState() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): handles are made of pointers.
  HandleState(Pointer state) : state_(std::move(state)) {}

  explicit operator bool() const { return state_ != nullptr; }
  const Pointer& pointer() const {
    if (state_ == nullptr) {
      throw_moved_from(kName.text);
    }
    return state_;
  }
  auto* operator->() const { return pointer().get(); }
  auto& operator*() const { return *pointer(); }

 private:
  Pointer state_ = nullptr;
};

}  // namespace sherd
