// SPDX-License-Identifier: Apache-2.0
//
// Transport of a group of one rank: there is nobody to send to. Thread rule: see
// Transport.
#pragma once

#include <memory>
#include "exchange/transport.h"

namespace sherd::exchange {

std::unique_ptr<Transport> make_single_rank_transport(int world_rank);

}  // namespace sherd::exchange
