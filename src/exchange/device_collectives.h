// SPDX-License-Identifier: Apache-2.0
//
// The collectives of communication hooks and optimizers on tensors of a device: those of c10d in
// the current stream, which must be the same one for all of a hook's work. The host never waits for
// the device here. Thread rule: one thread at a time; abort() any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>
#include <ATen/core/Tensor.h>
#include "exchange/flat_collectives.h"

namespace sherd::exchange {

class DeviceCollectives {
 public:
  // Collective over some of the ranks, given as ascending positions that include this rank's:
  // returns a backend among them.
  using Connect = std::function<BackendPtr(const std::vector<int>& members)>;

  // `all` connects all ranks. `connect` is called once for each other group of them.
  DeviceCollectives(c10::Device device, BackendPtr all, Connect connect);
  ~DeviceCollectives();
  DeviceCollectives(const DeviceCollectives&) = delete;
  DeviceCollectives& operator=(const DeviceCollectives&) = delete;

  c10::Device device() const { return device_; }

  // As in HookGroup; the backend chooses the order and the precision of sums.
  void all_reduce_mean(const at::Tensor& tensor);
  void all_reduce_mean(
      const at::Tensor& tensor, const std::vector<int>& members);
  void reduce_scatter_mean(
      const at::Tensor& tensor, const std::vector<std::int64_t>& cuts);
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor);

  // Sends each rank a 1-D tensor, all of one dtype, and returns what the ranks send to this one,
  // with the given numbers of elements.
  std::vector<at::Tensor> all_to_all(
      const std::vector<at::Tensor>& to,
      const std::vector<std::int64_t>& numels);

  // Ends collectives that wait for peers.
  void abort();

 private:
  BackendPtr among(const std::vector<int>& members);

  const c10::Device device_;
  const BackendPtr all_;
  const Connect connect_;
  std::mutex mu_;
  // Guarded by mu_:
  std::map<std::vector<int>, BackendPtr> some_;
};

}  // namespace sherd::exchange
