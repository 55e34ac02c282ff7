// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's dtypes under the names that safetensors gives them. Thread rule:
// pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <c10/core/ScalarType.h>

namespace sherd::ckpt {

// Empty: the format has none for it.
std::string name_of(c10::ScalarType dtype);
std::optional<c10::ScalarType> dtype_named(std::string_view name);
// The same; throws Error where LibTorch has none, saying what is of it.
c10::ScalarType dtype_named(std::string_view name, const std::string& what);

}  // namespace sherd::ckpt
