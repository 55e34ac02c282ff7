// SPDX-License-Identifier: Apache-2.0
//
// A wait on c10d's stores. Thread rule: any thread.
#pragma once

#include <chrono>
#include <string>

namespace c10d {
class Store;
}

namespace sherd::world {

// Waits until `key` exists, but for at most a quarter of a second, so that the caller can look at
// other evidence in between. Returns whether it exists. Throws if the store is lost.
bool wait_for_key(
    c10d::Store& store,
    const std::string& key,
    std::chrono::milliseconds timeout);

}  // namespace sherd::world
