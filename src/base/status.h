// SPDX-License-Identifier: Apache-2.0
//
// Status is the outcome of an operation that can fail in normal operation (a peer, a disk, a
// deadline): success, or a code with one sentence. Result<T> is a value or such a failure. A
// success does not allocate memory. The functions make statuses and sentences of exceptions, for
// threads that run foreign code and must continue. The macros at the end are for functions that can
// do nothing about the failure of what they call. Thread rule: values; any thread.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <type_traits>
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

// LibTorch appends a C++ backtrace to its messages, so only the first line is used.
inline std::string first_line_of(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

// The first line of the exception's message, to be sent to peers. It is never empty, because peers
// take an empty reason for success.
inline std::string reason_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    const auto line = first_line_of(error);
    return line.empty() ? "an exception without a message" : line;
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

// Returns the action's status, or success if the action returns none. An Error that it throws
// becomes a status with its code and sentence; any other exception becomes one with `code` and its
// text after `prefix`.
template <typename Action>
Status status_of(
    Action&& action, ErrorCode code, const std::string& prefix = {}) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Action>>) {
      action();
      return {};
    } else {
      return action();
    }
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (...) {
    return {code, prefix + reason_of(std::current_exception())};
  }
}

}  // namespace sherd

// Evaluates the expression, a Status, once; if it is a failure, the function returns it.
#define SHERD_RETURN_IF_FAILED(expression)                      \
  do {                                                          \
    if (auto sherd_status = (expression); !sherd_status.ok()) { \
      return sherd_status;                                      \
    }                                                           \
  } while (false)

// Evaluates the expression, a Result, once; if it is a failure, the function returns that, otherwise
// its value goes to `target`: a variable that exists, or the declaration of one.
#define SHERD_ASSIGN_OR_RETURN(target, expression) \
  SHERD_ASSIGN_OR_RETURN_AT(SHERD_NAME_AT(__LINE__), target, expression)
#define SHERD_NAME_AT(line) SHERD_NAME_AT_(line)
#define SHERD_NAME_AT_(line) sherd_result_##line
#define SHERD_ASSIGN_OR_RETURN_AT(result, target, expression) \
  auto result = (expression);                                 \
  SHERD_RETURN_IF_FAILED(result.status());                    \
  target = std::move(result).value()
