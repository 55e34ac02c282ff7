// SPDX-License-Identifier: Apache-2.0
//
// From exceptions to statuses, where somebody else's code runs on a thread that
// must go on, or between ranks that wait. Thread rule: any thread.
#pragma once

#include <exception>
#include <string>
#include "base/status.h"

namespace sherd {

// What the action returns. An Error that it throws is a status with its code and
// sentence; any other exception has this code, and `prefix` before its text.
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
