// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace sherd::test {

// The message that an action threw, or "no error".
template <typename Action>
std::string error_of(Action&& action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace sherd::test
