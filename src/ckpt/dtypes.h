// SPDX-License-Identifier: Apache-2.0
//
// The dtypes of the safetensors format: their names, sizes and LibTorch's counterparts. Thread rule:
// pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <c10/core/ScalarType.h>

namespace sherd::ckpt {

// Bytes of one element. 0: no dtype of the format, or one whose elements are no whole bytes (F4,
// F6_E2M3, F6_E3M2), which are refused everywhere here.
std::int64_t element_bytes(std::string_view dtype);

// Empty where the format has no name for the dtype.
std::string name_of(c10::ScalarType dtype);
// Empty where LibTorch has no such dtype.
std::optional<c10::ScalarType> dtype_named(std::string_view name);
// The same, but throws Error; `what` names in the message what has the dtype.
c10::ScalarType dtype_named(std::string_view name, const std::string& what);

}  // namespace sherd::ckpt
