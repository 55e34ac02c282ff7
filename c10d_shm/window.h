// SPDX-License-Identifier: Apache-2.0
//
// One-sided access between the ranks of a backend: each registers a tensor, whose memory then lies
// in a segment that all of them map. A put is a copy by the rank that puts, and a signal is a
// counter. c10d::Window of PyTorch 2.14 and newer is built on it. Thread rule: registering and
// deregistering from one thread at a time, by all ranks in the same order, and not while another
// thread uses the window; all other calls from any thread. docs/design/shm_backend.md
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>
#include <ATen/core/Tensor.h>
#include "c10d_shm/backend.h"
#ifdef C10D_BACKEND_HAS_WINDOW
#include <torch/csrc/distributed/c10d/Window.hpp>
#endif

namespace sherd::c10d_shm {

class ShmWindow {
 public:
  explicit ShmWindow(c10::intrusive_ptr<ShmBackend> backend);
  // Unless deregister_tensor() was called before, ranks that wait for a signal of this one get an
  // error.
  ~ShmWindow();
  ShmWindow(const ShmWindow&) = delete;
  ShmWindow& operator=(const ShmWindow&) = delete;

  // Collective: the storage of `tensor` moves into shared memory, with its values, and stays there
  // as long as it lives; pointers into the old storage become invalid. The tensors of the ranks may
  // differ in every way. If `owning`, the window keeps the tensor. Throws on every rank if some
  // rank's tensor is not dense and contiguous on the CPU, is a view that computes its values (a lazy
  // conjugate or negative), or already lies in a window.
  void register_tensor(const at::Tensor& tensor, bool owning);
  // Collective: returns when all ranks have called it; after that no rank puts.
  void deregister_tensor();

  // Copies `tensor` to the elements of that rank's tensor from `offset` on, which must have its
  // dtype. That rank sees it once it has waited for a signal sent afterwards.
  void put(const at::Tensor& tensor, int rank, std::int64_t offset);
  // The tensor of that rank, in its shape and in the same memory.
  at::Tensor tensor_of(int rank);

  void signal(int rank);
  // The number of that rank's next signal for which nobody waits yet.
  std::uint64_t next_signal(int rank);
  bool has_signal(int rank, std::uint64_t number) const;
  // Throws if that rank dies or leaves, or is silent for that long; the window is then no longer
  // usable.
  void wait_for_signal(
      int rank, std::uint64_t number, std::chrono::milliseconds at_most);

  std::chrono::milliseconds timeout() const;

 private:
  struct Memory;  // The segment and its layout.
  Memory& memory() const;
  void expect_rank(int rank) const;

  const c10::intrusive_ptr<ShmBackend> backend_;
  std::shared_ptr<Memory> memory_;  // Null if nothing is registered.
  at::Tensor owned_;
  std::mutex mu_;  // Guards waited_.
  // By rank: how many signals were waited for.
  std::vector<std::uint64_t> waited_;
};

#ifdef C10D_BACKEND_HAS_WINDOW
c10::intrusive_ptr<c10d::Window> make_c10d_window(
    std::shared_ptr<ShmWindow> window);
#endif

}  // namespace sherd::c10d_shm
