// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/state_name.h"

#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <string_view>
#include <system_error>

#include "base/check.h"

namespace sherd::ft {
namespace {

constexpr std::size_t kHalf = 16;  // Hexadecimal digits of 64 bits.

template <typename Number>
bool read(std::string_view text, int base, Number& value) {
  const auto* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.begin(), end, value, base);
  return error == std::errc() && stop == end;
}

}  // namespace

std::string name_of(const StateId& state) {
  char digits[2 * kHalf + 1];
  std::snprintf(
      digits, sizeof digits, "%016" PRIx64 "%016" PRIx64, state.lineage.high,
      state.lineage.low);
  return str("step ", state.step, " of ", digits);
}

StateId state_named(const std::string& name) {
  constexpr std::string_view kBegin = "step ";
  constexpr std::string_view kMiddle = " of ";
  const std::string_view text = name;
  const auto middle = text.find(kMiddle);
  StateId state;
  if (text.starts_with(kBegin) && middle != std::string_view::npos &&
      text.size() == middle + kMiddle.size() + 2 * kHalf) {
    const auto step = text.substr(kBegin.size(), middle - kBegin.size());
    const auto lineage = text.substr(middle + kMiddle.size());
    if (read(step, 10, state.step) &&
        read(lineage.substr(0, kHalf), 16, state.lineage.high) &&
        read(lineage.substr(kHalf), 16, state.lineage.low) &&
        name_of(state) == name && state.step >= 0) {
      return state;
    }
  }
  throw Error(
      str("[ft] expected the name of a state, such as \"", name_of(StateId()),
          "\", found \"", name, "\""));
}

}  // namespace sherd::ft
