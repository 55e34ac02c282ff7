// SPDX-License-Identifier: Apache-2.0
//
// The dtypes of the safetensors format: their names, sizes and LibTorch's counterparts. Thread
// rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <c10/core/ScalarType.h>

namespace sherd::ckpt {

// The bytes of one element. 0 for a name that is not a dtype of the format, or whose elements are
// not whole bytes (F4, F6_E2M3, F6_E3M2), which are refused everywhere here.
std::int64_t element_bytes(std::string_view dtype);

// The name of the dtype; empty if the format has none.
std::string name_of(c10::ScalarType dtype);
// The dtype of that name; empty if LibTorch has none.
std::optional<c10::ScalarType> dtype_named(std::string_view name);
// The same, but throws Error; `what` says in the message what has the dtype.
c10::ScalarType dtype_named(std::string_view name, const std::string& what);

}  // namespace sherd::ckpt
