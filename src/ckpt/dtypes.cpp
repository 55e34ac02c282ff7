// SPDX-License-Identifier: Apache-2.0
#include "ckpt/dtypes.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace sherd::ckpt {
namespace {

using Type = c10::ScalarType;

struct Dtype {
  std::string_view name;
  std::int64_t bytes = 0;
  std::optional<Type> type = std::nullopt;
};

constexpr std::array kDtypes = std::to_array<Dtype>({
    {"F64", 8, Type::Double},
    {"F32", 4, Type::Float},
    {"F16", 2, Type::Half},
    {"BF16", 2, Type::BFloat16},
    {"I64", 8, Type::Long},
    {"I32", 4, Type::Int},
    {"I16", 2, Type::Short},
    {"I8", 1, Type::Char},
    {"U64", 8, Type::UInt64},
    {"U32", 4, Type::UInt32},
    {"U16", 2, Type::UInt16},
    {"U8", 1, Type::Byte},
    {"BOOL", 1, Type::Bool},
    {"F8_E4M3", 1, Type::Float8_e4m3fn},
    {"F8_E5M2", 1, Type::Float8_e5m2},
    {"F8_E8M0", 1},
    {"F8_E4M3FNUZ", 1},
    {"F8_E5M2FNUZ", 1},
    {"C64", 8, Type::ComplexFloat},
});

Dtype named(std::string_view name) {
  const auto* const found = std::ranges::find(kDtypes, name, &Dtype::name);
  return found == kDtypes.end() ? Dtype{} : *found;
}

}  // namespace

std::int64_t element_bytes(std::string_view dtype) {
  return named(dtype).bytes;
}

std::string name_of(c10::ScalarType dtype) {
  const auto* const found = std::ranges::find(kDtypes, dtype, &Dtype::type);
  return std::string(found == kDtypes.end() ? "" : found->name);
}

std::optional<c10::ScalarType> dtype_named(std::string_view name) {
  return named(name).type;
}

c10::ScalarType dtype_named(std::string_view name, const std::string& what) {
  const auto dtype = dtype_named(name);
  SHERD_CHECK(
      dtype.has_value(), "[ckpt] ", what, " is ", name,
      ", which LibTorch has no dtype for here");
  return *dtype;
}

}  // namespace sherd::ckpt
