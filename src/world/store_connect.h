// SPDX-License-Identifier: Apache-2.0
//
// Opens rank 0's store, or connects to it (or to the launcher's), in bounded time and without the
// backtraces that c10d prints while nobody listens yet. Thread rule: any thread.
#pragma once

#include <chrono>
#include <string>
#include <c10/util/intrusive_ptr.h>
#include "base/rank_environment.h"

namespace c10d {
class Store;
}

namespace sherd::world {

struct StoreConnection {
  c10::intrusive_ptr<c10d::Store> store;
  // What may keep other ranks from the store, to end an error about missing ranks. Empty: nothing.
  std::string doubt{};
};

// Throws Error: kUnavailable naming the port if rank 0 cannot listen on it, kDeadlineExceeded if
// nobody, or another program, listens where rank 0 should.
StoreConnection connect_store(
    const RankEnvironment& env, std::chrono::milliseconds deadline);

}  // namespace sherd::world
