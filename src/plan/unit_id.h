// SPDX-License-Identifier: Apache-2.0
//
// A unit's number in its model: 0, 1, ... in the order in which units were made, the same on every
// rank. Thread rule: a value.
#pragma once

namespace sherd::plan {

using UnitId = int;

}  // namespace sherd::plan
