// SPDX-License-Identifier: Apache-2.0
//
// A c10d backend for CPU tensors of ranks on one host, over shared memory, for programs that use
// c10d themselves; torch.distributed has it as "shm" (Python module sherd.shm). Link
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
  // How long joining may take, and how long a rank may keep the others waiting in a call that has
  // no timeout of its own. For a message this counts from when it is issued, not from its
  // Work::wait() as with Gloo, and again from each piece of it that moves: a receive that is issued
  // long before its message is sent needs a timeout for that.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // How errors name the ranks, in order; if empty, 0, 1, ...
  std::vector<int> names{};
  // Copies from process to process if the kernel allows it; if false, only through the segment.
  bool single_copy = true;
  // The backend joins only in its reconfigure(). Needs PyTorch 2.14; with older versions
  // make_shm_backend() throws.
  bool enable_reconfigure = false;
  // For a program that has a lock of its own that callbacks of works need, such as Python's. When a
  // backend is released, it ends its work and joins its threads: `unlocked` must run that, `block`,
  // once without the lock; or not at all in a forked child, which is not the rank. If it is empty,
  // `block` is simply run.
  std::function<void(const std::function<void()>& block)> unlocked{};
  // Called with every backend: this one, and those split off from it. May be empty.
  std::function<void(const c10::intrusive_ptr<c10d::Backend>&)> made{};
};

// Collective over the `size` ranks that share `store`. A store may serve one group after another,
// whatever became of earlier ones, if each rank makes one backend for each. Throws Error on every
// rank if they are not all on this host, if memory is short, or, naming a rank, if that rank does
// not come.
c10::intrusive_ptr<c10d::Backend> make_shm_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const ShmGroupOptions& options = {});

}  // namespace sherd
