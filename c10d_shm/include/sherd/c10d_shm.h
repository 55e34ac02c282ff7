// SPDX-License-Identifier: Apache-2.0
//
// A c10d backend for CPU tensors of ranks on one host, over shared memory, for programs that use
// c10d themselves; torch.distributed has it as "shm" (Python package sherd_shm). Link
// sherd::c10d_shm. Thread rule: any thread; collectives of a group from one at a time.
#pragma once

#include <chrono>
#include <functional>
#include <vector>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace sherd {

// Equal on every rank.
struct ShmGroupOptions {
  // How long joining may take, and how long a rank may keep the others waiting in
  // a call that has no timeout of its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // How errors name the ranks, in order; empty: 0, 1, ...
  std::vector<int> names{};
  // Copies from process to process where the kernel allows it; false: through
  // the segment only.
  bool single_copy = true;
  // The backend joins nobody before its reconfigure(). From PyTorch 2.14 on; with
  // older ones make_shm_backend() throws.
  bool enable_reconfigure = false;
  // For a program with a lock of its own that callbacks of works need, such as
  // Python's. A backend that is dropped ends its work and joins its threads:
  // `unlocked` runs that, `block`, once, without the lock, or not at all in a
  // forked child, which is not the rank; empty: as it is.
  std::function<void(const std::function<void()>& block)> unlocked{};
  // Called with every backend: this one, and those split off it. May be empty.
  std::function<void(const c10::intrusive_ptr<c10d::Backend>&)> made{};
};

// Collective over the `size` ranks that share `store`. A store may serve one group
// after another, whatever became of those before, when each rank makes one backend
// for each. Throws Error, on every rank, when they are not all
// on this host, when memory is short, or naming a rank that does not come.
c10::intrusive_ptr<c10d::Backend> make_shm_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const ShmGroupOptions& options = {});

}  // namespace sherd
