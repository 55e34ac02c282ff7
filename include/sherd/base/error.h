// SPDX-License-Identifier: Apache-2.0
//
// Error is what sherd throws: for a mistake of the caller (a wrong argument, calls in the wrong
// order) and, from calls that cannot return a status, for an operation that failed (a rank was
// lost, a deadline passed). what() is one sentence that starts with the part of sherd in brackets
// and says what was expected and what was found. Unlike c10::Error it carries no C++ backtrace,
// which would bury the sentence. Thread rule: a value.
#pragma once

#include <stdexcept>
#include <string>

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

}  // namespace sherd
