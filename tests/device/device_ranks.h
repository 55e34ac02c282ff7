// SPDX-License-Identifier: Apache-2.0
//
// Ranks of a test as threads of this process, each with a World and a checking device of its own, so
// that whole models train on devices on a machine that has none:
//
//   run_device_ranks(2, [](const DeviceRank& self) {
//     auto fsdp = fully_shard(*model_on(self.device), self.world);
//     ...
//   });
//
// What a body throws fails the test, and so does every access that no event orders.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <sherd/world/world.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include "support/checking_device/checking_device.h"
#include "support/checking_device/thread_backend.h"
#include "world/device_backend.h"

namespace sherd::test {

struct DeviceRank {
  World world;
  c10::Device device;
  const ThreadNetwork& network;
};

// As torch.use_deterministic_algorithms(True) in Python.
class DeterministicAlgorithms {
 public:
  DeterministicAlgorithms() {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }
  ~DeterministicAlgorithms() {
    at::globalContext().setDeterministicAlgorithms(false, false);
  }
  DeterministicAlgorithms(const DeterministicAlgorithms&) = delete;
  DeterministicAlgorithms& operator=(const DeterministicAlgorithms&) = delete;
};

using DeviceBody = std::function<void(const DeviceRank&)>;

struct DeviceRanksOptions {
  std::chrono::milliseconds deadline = std::chrono::seconds(20);
  // Whether worlds know backends for the devices.
  bool with_backends = true;
  // Ranks end with errors: worlds are not closed.
  bool disorderly = false;
  // Sums of backends begin with the last rank.
  bool sums_backwards = false;
  // Backends allocate memory.
  bool offers_memory = false;
};

inline void run_device_rank(
    World world,
    ThreadNetwork& network,
    const DeviceRanksOptions& options,
    const DeviceBody& body) {
  at::set_num_threads(1);
  const DeviceRank self{world, checking_device(world.rank()), network};
  c10::impl::VirtualGuardImpl(self.device.type()).setDevice(self.device);
  if (options.with_backends) {
    world::set_device_backend(
        world, self.device.type(),
        [&](const std::string& name, const std::vector<int>& ranks) {
          return network.backend(world.rank(), name, ranks);
        });
  }
  body(self);
  if (!options.disorderly) {
    world.close();
  }
}

inline void run_device_ranks(
    int ranks, const DeviceBody& body, const DeviceRanksOptions& options = {}) {
  (void)checking_device();
  ThreadNetwork network(ranks, options.deadline, options.sums_backwards);
  if (options.offers_memory) {
    network.offer_memory();
  }
  const auto store = c10::make_intrusive<c10d::HashStore>();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          run_device_rank(
              World::from_store(
                  store, rank, ranks, {.deadline = options.deadline}),
              network, options, body);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& fault : take_faults(checking_device(rank))) {
      ADD_FAILURE() << "rank " << rank << ": " << fault;
    }
  }
}

}  // namespace sherd::test
