// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a replica share its samples. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>
#include "ft/protocol/identity.h"

namespace sherd::ft {

// Neighbouring ranks get neighbouring samples, each as many: `ranks` divides their
// number.
std::vector<SampleRange> samples_of_rank(
    const std::vector<SampleRange>& samples, int rank, int ranks);

}  // namespace sherd::ft
