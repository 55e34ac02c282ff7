// SPDX-License-Identifier: Apache-2.0
#include <sherd/c10d_shm.h>

#include <torch/csrc/distributed/c10d/Store.hpp>
#include "base/check.h"
#include "c10d_shm/backend.h"

namespace sherd {

c10::intrusive_ptr<c10d::Backend> make_shm_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const ShmGroupOptions& options) {
  using c10d_shm::ShmBackend;
  auto made = c10::make_intrusive<c10d_shm::ShmBackendOptions>(options.timeout);
  made->global_ranks_in_group.assign(
      options.names.begin(), options.names.end());
  made->communicator.single_copy = options.single_copy;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  made->enable_reconfigure = options.enable_reconfigure;
#else
  SHERD_CHECK(
      !options.enable_reconfigure,
      "[c10d_shm] enable_reconfigure: expected PyTorch 2.14 or newer, found ",
      TORCH_VERSION);
#endif
  made->unlocked = options.unlocked;
  made->made = options.made;
  auto backend = c10::make_intrusive<ShmBackend>(store, rank, size, made);
  if (options.made) {
    options.made(backend);
  }
  return backend;
}

}  // namespace sherd
