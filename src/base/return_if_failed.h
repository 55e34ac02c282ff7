// SPDX-License-Identifier: Apache-2.0
//
// For functions that return a Status or a Result and can do nothing about the failure of what they
// call. Thread rule: any thread.
#pragma once

#include <utility>
#include "base/status.h"

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
