// SPDX-License-Identifier: Apache-2.0
//
// Backends of c10d between ranks that are threads of this process and share one device with
// streams, such as one GPU, while NCCL would need a device for each rank. Collectives are copies
// and sums in the current stream. Their order is that of NCCL; in each, the host waits until all
// ranks have called it. Thread rule: backend() from any thread; a backend belongs to its rank.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace sherd::test {

class ThreadsOnDevice {
 public:
  // A rank that waits longer than `deadline` for another one throws. `delay`, unless empty, is
  // called before and after each read of the ranks' contributions, with the collective's stream as
  // the current one: work that it puts there makes missing waits visible.
  explicit ThreadsOnDevice(
      std::chrono::milliseconds deadline, std::function<void()> delay = {});
  ~ThreadsOnDevice();
  ThreadsOnDevice(const ThreadsOnDevice&) = delete;
  ThreadsOnDevice& operator=(const ThreadsOnDevice&) = delete;

  // As world::MakeDeviceBackend, for that rank.
  c10::intrusive_ptr<c10d::Backend> backend(
      int rank, const std::string& name, const std::vector<int>& ranks);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sherd::test
