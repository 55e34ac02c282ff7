// SPDX-License-Identifier: Apache-2.0
//
// For calls into c10d that may block longer than their caller can wait: the call runs on a thread
// of its own, and a caller that cannot wait any longer goes on without it. The call must therefore
// own everything it needs. Thread rule: any thread.
#pragma once

#include <future>
#include <thread>
#include <utility>

namespace sherd::world {

// The future's destructor does not wait.
template <typename Call>
auto start_detached(Call call) {
  std::packaged_task<decltype(call())()> task(std::move(call));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

}  // namespace sherd::world
