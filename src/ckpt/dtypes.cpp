// SPDX-License-Identifier: Apache-2.0
#include "ckpt/dtypes.h"

#include <array>
#include <utility>

#include "base/check.h"

namespace sherd::ckpt {
namespace {

using Type = c10::ScalarType;
constexpr std::array<std::pair<const char*, Type>, 13> kNames = {{
    {"F64", Type::Double},
    {"F32", Type::Float},
    {"F16", Type::Half},
    {"BF16", Type::BFloat16},
    {"I64", Type::Long},
    {"I32", Type::Int},
    {"I16", Type::Short},
    {"I8", Type::Char},
    {"U8", Type::Byte},
    {"BOOL", Type::Bool},
    {"F8_E4M3", Type::Float8_e4m3fn},
    {"F8_E5M2", Type::Float8_e5m2},
    {"C64", Type::ComplexFloat},
}};

}  // namespace

std::string name_of(c10::ScalarType dtype) {
  for (const auto& [name, type] : kNames) {
    if (type == dtype) {
      return name;
    }
  }
  return {};
}

std::optional<c10::ScalarType> dtype_named(std::string_view wanted) {
  for (const auto& [name, type] : kNames) {
    if (wanted == name) {
      return type;
    }
  }
  return std::nullopt;
}

c10::ScalarType dtype_named(std::string_view name, const std::string& what) {
  const auto dtype = dtype_named(name);
  SHERD_CHECK(
      dtype.has_value(), "[ckpt] ", what, " is ", name,
      ", which LibTorch has no dtype for here");
  return *dtype;
}

}  // namespace sherd::ckpt
