// SPDX-License-Identifier: Apache-2.0
//
// Thread rule: a constant.
#pragma once

#include <cstdint>

namespace sherd::exchange {

// Of the kernel, in bytes: what memory is mapped, shared and given back by.
inline constexpr std::int64_t kPage = 4096;

}  // namespace sherd::exchange
