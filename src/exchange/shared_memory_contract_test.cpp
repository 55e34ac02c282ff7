// SPDX-License-Identifier: Apache-2.0
//
// The contract suite over shared memory: ranks are processes, and die by
// SIGKILL.
#include "exchange/contract_processes_testing.h"
#include "exchange/shared_memory_exchange.h"
#include "world/transport.h"

namespace sherd::exchange::contract {
namespace {

ExchangeUnderTest shared_memory(int ranks, bool sum_thread = false) {
  const auto run = [=](int n, const RunOptions& options, const Body& body) {
    return run_in_processes(
        [=](const World& world, const std::vector<int>& all) {
          return make_shared_memory_exchange(
              world, "contract",
              world::make_c10d_transport(world, "contract/transport", all),
              sum_thread);
        },
        n, options, body);
  };
  return {
      .name = sum_thread ? "OnThread" : "On",
      .ranks = ranks,
      .run_on = run,
      .one_sided = true,
      .sums_in_any_order = true};
}

std::vector<ExchangeUnderTest> shared_memories() {
  return {
      shared_memory(2), shared_memory(3), shared_memory(4), shared_memory(7),
      shared_memory(3, /*sum_thread=*/true)};
}

SHERD_EXCHANGE_CONTRACT(SharedMemory, testing::ValuesIn(shared_memories()));

// One rank, with whom nobody can disagree.
const auto kAlone = testing::Values(shared_memory(1));
INSTANTIATE_TEST_SUITE_P(SharedMemoryAlone, ExchangeUnshard, kAlone, name_of);
INSTANTIATE_TEST_SUITE_P(SharedMemoryAlone, ExchangeReduce, kAlone, name_of);
INSTANTIATE_TEST_SUITE_P(SharedMemoryAlone, ExchangeBackward, kAlone, name_of);
INSTANTIATE_TEST_SUITE_P(SharedMemoryAlone, ExchangeNumbers, kAlone, name_of);
INSTANTIATE_TEST_SUITE_P(SharedMemoryAlone, ExchangeFailure, kAlone, name_of);

}  // namespace
}  // namespace sherd::exchange::contract
