// SPDX-License-Identifier: Apache-2.0
//
// Error is what sherd throws: for a mistake of the caller (wrong argument, wrong
// order of calls) and, out of calls that cannot return a status, for an
// operating failure (a rank was lost, a deadline passed). what() is one
// sentence that starts with the part in brackets and names what was expected
// and what was found. Unlike c10::Error it carries no C++ backtrace, which
// would bury the sentence. Thread rule: a value.
#pragma once

#include <stdexcept>
#include <string>

namespace sherd {

enum class ErrorCode {
  kInvalidArgument,     // The call can never work as written.
  kFailedPrecondition,  // Right call, wrong moment.
  kPeerLost,            // Another rank died or closed its connection.
  kPeerMismatch,        // Another rank does something else than this one.
  kDeadlineExceeded,    // Nobody answered in time.
  kUnavailable,         // A file, port or other resource could not be had.
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
