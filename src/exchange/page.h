// SPDX-License-Identifier: Apache-2.0
//
// Thread rule: a constant.
#pragma once

#include <cstdint>

namespace sherd::exchange {

// The kernel's page in bytes: the unit in which memory is mapped, shared and given back.
inline constexpr std::int64_t kPage = 4096;

}  // namespace sherd::exchange
