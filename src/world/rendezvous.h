// SPDX-License-Identifier: Apache-2.0
//
// The rendezvous of the ranks of a job in a store: every rank leaves its record, rank 0 decides
// whether all have come and agree, and all read its verdict. Thus every rank that arrived fails
// with the same sentence. Store keys: sherd/{rank/<r>, disagree, verdict, heard}. Thread rule: any
// thread.
#pragma once

#include <chrono>
#include <vector>
#include <c10/util/intrusive_ptr.h>
#include "world/rank_record.h"

namespace c10d {
class Store;
}

namespace sherd::world {

// Collective over all ranks. Returns all records, by rank. Throws Error: kPeerMismatch if ranks
// disagree on the world size or two claim the same rank, kDeadlineExceeded naming the ranks that
// did not arrive, kPeerLost if the store is lost meanwhile.
std::vector<RankRecord> rendezvous(
    c10d::Store& store,
    const RankRecord& mine,
    std::chrono::milliseconds deadline);

}  // namespace sherd::world
