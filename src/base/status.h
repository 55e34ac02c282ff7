// SPDX-License-Identifier: Apache-2.0
//
// Status is the outcome of an operation that can fail in normal operation (a peer, a disk, a
// deadline): success, or a code with one sentence. Result<T> is a value or such a failure. A
// success does not allocate memory. Thread rule: values.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <sherd/base/error.h>
#include "base/check.h"

namespace sherd {

class [[nodiscard]] Status {
 public:
  Status() = default;  // Success.
  Status(ErrorCode code, std::string message)
      : failure_(Failure{code, std::move(message)}) {}

  bool ok() const { return !failure_.has_value(); }

  // REQUIRES: !ok().
  ErrorCode code() const { return failure_.value().code; }

  // "ok", or the sentence of the failure.
  const std::string& message() const {
    static const std::string kOk = "ok";
    return ok() ? kOk : failure_->message;
  }

  // Throws the failure as sherd::Error; does nothing on success.
  void throw_if_failed() const {
    if (!ok()) {
      throw Error(failure_->message, failure_->code);
    }
  }

 private:
  struct Failure {
    ErrorCode code;
    std::string message;
  };
  std::optional<Failure> failure_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): return a value or a Status.
  Result(T value) : value_(std::move(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor)
  Result(Status failure) : status_(std::move(failure)) {
    SHERD_ASSERT(!status_.ok(), "a Result made of success has no value");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // Throws the failure if there is no value.
  const T& value() const& {
    status_.throw_if_failed();
    return *value_;
  }
  T value() && {
    status_.throw_if_failed();
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace sherd
