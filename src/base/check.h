// SPDX-License-Identifier: Apache-2.0
//
// The two ways to say "this must hold". SHERD_CHECK is for what a user can get
// wrong: it throws sherd::Error. SHERD_ASSERT is for what only a bug in sherd
// can break: it prints and aborts, in release builds too, because a rank that
// goes on with a broken invariant would spread wrong numbers to all others.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <sherd/base/error.h>

namespace sherd {

// Concatenates with operator<<; the arguments of a message.
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
#define SHERD_CHECK(condition, ...)                 \
  do {                                              \
    if (!(condition)) {                             \
      throw ::sherd::Error(::sherd::str(__VA_ARGS__)); \
    }                                               \
  } while (false)

// The same with a code: SHERD_CHECK_AS(kPeerLost, alive, "[world] ...").
#define SHERD_CHECK_AS(code, condition, ...)                        \
  do {                                                              \
    if (!(condition)) {                                             \
      throw ::sherd::Error(                                         \
          ::sherd::str(__VA_ARGS__), ::sherd::ErrorCode::code);     \
    }                                                               \
  } while (false)

#define SHERD_ASSERT(condition, ...)                                     \
  do {                                                                   \
    if (!(condition)) {                                                  \
      ::sherd::assert_failed(                                            \
          __FILE__, __LINE__, #condition, ::sherd::str("" __VA_ARGS__)); \
    }                                                                    \
  } while (false)
