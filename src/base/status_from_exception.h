// SPDX-License-Identifier: Apache-2.0
//
// Turns exceptions into statuses and sentences, for threads that run foreign code and must
// continue. Thread rule: any thread.
#pragma once

#include <exception>
#include <string>
#include <type_traits>
#include "base/status.h"

namespace sherd {

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
  } catch (const std::exception& error) {
    return {code, prefix + error.what()};
  }
}

}  // namespace sherd
