// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over shared memory: ranks are processes, and die by
// SIGKILL.
#include "exchange/contract_processes_testing.h"
#include "exchange/shared_memory_exchange.h"

namespace sherd::exchange::contract {
namespace {

std::vector<std::string> run_on_shared_memory(
    int ranks, const RunOptions& options, const Body& body) {
  return run_in_processes(
      [](const World& world, const std::vector<int>& all) {
        return make_shared_memory_exchange(world, "contract", all);
      },
      ranks, options, body);
}

std::vector<Contender> shared_memories() {
  std::vector<Contender> all;
  for (const int ranks : {2, 3, 4}) {
    all.push_back(
        {.name = "On",
         .ranks = ranks,
         .run_on = run_on_shared_memory,
         .one_sided = true,
         .replicates = false});
  }
  return all;
}

SHERD_EXCHANGE_CONTRACT(SharedMemory, testing::ValuesIn(shared_memories()));

}  // namespace
}  // namespace sherd::exchange::contract
