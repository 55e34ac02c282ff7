// SPDX-License-Identifier: Apache-2.0
//
// The store of a launcher's agent outlives its ranks: torchrun restarts all of them when one fails or a
// node comes, and the keys of the former ranks are still there. No variable of the environment names a
// start on all nodes (TORCHELASTIC_RESTART_COUNT is each node's own), so rank 0 numbers the rounds: each
// world has one, and its keys are in a store of its own. The other ranks join the newest round, and pass
// over one that is of former ranks, which shows in that
//
// - its world was closed, or rank 0 has judged it already,
// - this rank is there already, or rank 0 has another world size,
// - rank 0 begins a newer one while they wait for it in this one.
//
// The same may be a mistake: two processes of one rank, say. When no newer round begins until the
// deadline, a rank joins the newest one after all, whose rendezvous then says what is wrong; and soon
// where the process in its way lives on this host, since that of a former rank would end.
// Store keys: sherd/round, and in a round those of the rendezvous and sherd/closed. Thread rule: any thread.
#pragma once

#include <chrono>
#include <vector>
#include <c10/util/intrusive_ptr.h>
#include "world/rank_record.h"

namespace c10d {
class Store;
}

namespace sherd::world {

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;
  std::vector<RankRecord> records;  // By rank.
};

// Collective over all ranks: a rendezvous in a new round of `agents`. The
// deadline is that until rank 0 has come, and again that until the others have.
// Throws Error as rendezvous() does.
Meeting meet_in_new_round(
    const c10::intrusive_ptr<c10d::Store>& agents,
    const RankRecord& mine,
    std::chrono::milliseconds deadline);

// Rank 0 only, of Meeting::store, once all ranks have closed their world and
// before one of them goes on: they may meet again. Throws when the store is lost.
void end_round(c10d::Store& round);

}  // namespace sherd::world
