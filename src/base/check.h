// SPDX-License-Identifier: Apache-2.0
//
// The two ways to say "this must hold". SHERD_CHECK is for a user's mistake and throws
// sherd::Error. SHERD_ASSERT is for a bug in sherd: it prints and aborts, also in release builds,
// because a rank that continues with a broken invariant would spread wrong numbers to all others.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <sherd/base/error.h>

namespace sherd {

// Concatenates the parts of a message with operator<<.
template <typename... Args>
std::string str(Args&&... args) {
  std::ostringstream out;
  (out << ... << std::forward<Args>(args));
  return out.str();
}

[[noreturn]] void assert_failed(
    const char* file, int line, const char* condition, const std::string& why);

}  // namespace sherd

// SHERD_CHECK(width % heads == 0, "[models] width ", width, " ...").
#define SHERD_CHECK(condition, ...) \
  SHERD_CHECK_AS(kInvalidArgument, condition, __VA_ARGS__)

// The same with another code: SHERD_CHECK_AS(kPeerLost, alive, "[world] ...").
#define SHERD_CHECK_AS(code, condition, ...)                    \
  do {                                                          \
    if (!(condition)) {                                         \
      throw ::sherd::Error(                                     \
          ::sherd::str(__VA_ARGS__), ::sherd::ErrorCode::code); \
    }                                                           \
  } while (false)

#define SHERD_ASSERT(condition, ...)                                     \
  do {                                                                   \
    if (!(condition)) {                                                  \
      ::sherd::assert_failed(                                            \
          __FILE__, __LINE__, #condition, ::sherd::str("" __VA_ARGS__)); \
    }                                                                    \
  } while (false)
