// SPDX-License-Identifier: Apache-2.0
//
// A gate holds back the ranks of a contender at a step until `sherd bench` permits it: a file whose
// length is the last permitted step. Ranks of a fault-tolerant run have no stdin through which to
// tell them. Thread rule: any thread of any process.
#pragma once

#include <cstdint>
#include <string>

namespace sherd::bench {

// Permits steps up to this number; 0 makes the file. Throws Error if it cannot be written. REQUIRES:
// no fewer than before.
void open_gate_until(const std::string& gate, std::int64_t step);

// Returns when that step may begin. Throws Error if that takes ten minutes.
void wait_at_gate(const std::string& gate, std::int64_t step);

}  // namespace sherd::bench
