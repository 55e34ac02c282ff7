// SPDX-License-Identifier: Apache-2.0
//
// Turns exceptions into statuses where foreign code runs on a thread that must go on. Thread rule:
// any thread.
#pragma once

#include <exception>
#include <string>
#include "base/status.h"

namespace sherd {

// Returns the action's status. An Error that it throws becomes a status with its code and sentence;
// any other exception gets `code`, and `prefix` before its text.
template <typename Action>
Status status_of(
    Action&& action, ErrorCode code, const std::string& prefix = {}) {
  try {
    return action();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::exception& error) {
    return {code, prefix + error.what()};
  }
}

}  // namespace sherd
