// SPDX-License-Identifier: Apache-2.0
//
// The rendezvous of the ranks of a job in a store: every rank leaves its record, rank 0 decides
// whether all have come and agree, and all read its verdict. Thus every rank that arrived fails
// with the same sentence. Store keys: sherd/{rank/<r>, second, disagree, verdict, heard}.
// Thread rule: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include <c10/util/intrusive_ptr.h>
#include "base/status.h"
#include "world/rank_record.h"

namespace c10d {
class Store;
}

namespace sherd::world {

// Collective over all ranks. Returns all records, by rank. Throws Error: kPeerMismatch if ranks
// disagree on the world size or two claim the same rank, kDeadlineExceeded naming the ranks that
// did not arrive, kPeerLost if the store is lost meanwhile. `doubt` ends an error about missing
// ranks: what may keep them away, as far as this rank knows.
std::vector<RankRecord> rendezvous(
    c10d::Store& store,
    const RankRecord& mine,
    std::chrono::milliseconds deadline,
    const std::string& doubt = "");

// The same, but returns nothing once `is_over` says that this is not where the
// ranks meet. It is asked a few times a second, and once before the end.
std::optional<std::vector<RankRecord>> rendezvous_unless_over(
    c10d::Store& store,
    const RankRecord& mine,
    std::chrono::milliseconds deadline,
    const std::function<bool()>& is_over,
    const std::string& doubt = "");

// What a look at a store shows of a rendezvous in it. Both throw when the store
// is lost.
std::optional<RankRecord> record_of(c10d::Store& store, int rank);
bool has_verdict(c10d::Store& store);

// kPeerMismatch: `mine` and `other`, where it is known, are of the same rank.
Error second_process(
    const RankRecord& mine, const std::optional<RankRecord>& other);

}  // namespace sherd::world
