// SPDX-License-Identifier: Apache-2.0
//
// For functions that return a Status or a Result and can do nothing about the failure of what they
// call. Thread rule: any thread.
#pragma once

#include "base/status.h"

// Evaluates the expression, a Status, once; if it is a failure, the function returns it.
#define SHERD_RETURN_IF_FAILED(expression)                      \
  do {                                                          \
    if (auto sherd_status = (expression); !sherd_status.ok()) { \
      return sherd_status;                                      \
    }                                                           \
  } while (false)
