// SPDX-License-Identifier: Apache-2.0
//
// Link of a group of one rank: there is nobody to send to. Thread rule: see
// Link.
#pragma once

#include <memory>
#include "exchange/link.h"

namespace sherd::exchange {

std::unique_ptr<Link> make_solo_link(int world_rank);

}  // namespace sherd::exchange
