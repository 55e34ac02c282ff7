// SPDX-License-Identifier: Apache-2.0
//
// What the error of a replica says when the coordinator has refused it for good. The launcher looks
// for it in the output of a rank that ends with status 2, which other errors have, too. Thread
// rule: a constant.
#pragma once

#include <string_view>

namespace sherd {

inline constexpr std::string_view kFinalRefusal =
    "; starting this replica again does not help";

}  // namespace sherd
