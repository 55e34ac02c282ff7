// SPDX-License-Identifier: Apache-2.0
#include "compat/nccl_backend.h"

#include <sherd/base/error.h>

#if defined(USE_C10D_NCCL) && __has_include(<cuda_runtime.h>) && \
    __has_include(<nccl.h>)
#define SHERD_NCCL 1
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#else
#define SHERD_NCCL 0
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#endif

namespace sherd::compat {

bool nccl_is_built() { return SHERD_NCCL != 0; }

#if SHERD_NCCL
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds deadline) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = deadline;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(
      store, rank, size, options);
}
#else
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& /*store*/,
    int /*rank*/,
    int /*size*/,
    std::chrono::milliseconds /*deadline*/) {
  throw Error(
      "[world] expected a sherd built with NCCL (a LibTorch with CUDA, and the "
      "CUDA and NCCL headers), found one built without",
      ErrorCode::kUnavailable);
}
#endif

}  // namespace sherd::compat
