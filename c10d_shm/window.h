// SPDX-License-Identifier: Apache-2.0
//
// One-sided access between the ranks of a backend: each registers a tensor, whose memory then lies in
// a segment that all of them map. A put is a copy by the rank that puts, and a signal a counter.
// c10d::Window of PyTorch 2.14 and newer is made of it (c10d_window.h). Thread rule: registering and
// deregistering from one thread at a time, by all ranks in the same order, and not while another
// thread uses the window; the rest from any thread. docs/design/shm_backend.md
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>
#include <ATen/core/Tensor.h>
#include "c10d_shm/backend.h"

namespace sherd::c10d_shm {

class ShmWindow {
 public:
  explicit ShmWindow(c10::intrusive_ptr<ShmBackend> backend);
  // Without a deregister_tensor() before, ranks that wait for a signal of this one get an error.
  ~ShmWindow();
  ShmWindow(const ShmWindow&) = delete;
  ShmWindow& operator=(const ShmWindow&) = delete;

  // Collective: the storage of `tensor` moves into shared memory, with its values, where it stays as
  // long as it lives; pointers into the old one are void. Tensors of ranks may differ in all ways.
  // `owning`: the window keeps the tensor. Throws, on every rank, where a rank's tensor is not dense
  // and contiguous on the CPU or lies in a window already.
  void register_tensor(const at::Tensor& tensor, bool owning);
  // Collective: ends when all ranks have come, after which nobody puts.
  void deregister_tensor();

  // Copies `tensor` to the elements of that rank's tensor from `offset` on, which have its dtype. That
  // rank sees it once it has waited for a signal sent after it.
  void put(const at::Tensor& tensor, int rank, std::int64_t offset);
  // That rank's tensor, in its shape: the same memory.
  at::Tensor tensor_of(int rank);

  void signal(int rank);
  // The number of the next signal of that rank which nobody waits for yet.
  std::uint64_t next_signal(int rank);
  bool has_signal(int rank, std::uint64_t number) const;
  // Throws when that rank dies or leaves, or is silent for so long; then the window is of no more use.
  void wait_for_signal(
      int rank, std::uint64_t number, std::chrono::milliseconds at_most);

  std::chrono::milliseconds timeout() const;

 private:
  struct Memory;  // The segment and what lies where in it.
  Memory& memory() const;
  void expect_rank(int rank) const;

  const c10::intrusive_ptr<ShmBackend> backend_;
  std::shared_ptr<Memory> memory_;  // Null: nothing is registered.
  at::Tensor owned_;
  std::mutex mu_;                      // Guards waited_.
  std::vector<std::uint64_t> waited_;  // By rank: signals that were waited for.
};

}  // namespace sherd::c10d_shm
