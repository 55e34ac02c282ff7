// SPDX-License-Identifier: Apache-2.0
#include "compat/nccl_backend.h"

#include <exception>
#include <string>

#include <sherd/base/error.h>

#if defined(USE_C10D_NCCL) && __has_include(<cuda_runtime.h>) && \
    __has_include(<nccl.h>)
#define SHERD_NCCL 1
#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#else
#define SHERD_NCCL 0
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#endif

namespace sherd::compat {

bool nccl_is_built() { return SHERD_NCCL != 0; }

namespace {

#if SHERD_NCCL

// c10d wants a group to be shut down before it is dropped; else it warns, and aborts what is under way.
class NcclBackend final : public c10d::ProcessGroupNCCL {
 public:
  using ProcessGroupNCCL::ProcessGroupNCCL;
  ~NcclBackend() override {
    try {
      shutdown();
    } catch (const std::exception& error) {
      TORCH_WARN("[world] NCCL: ", error.what());
    }
  }
};

// c10d's options have NCCL's in them, whose size differs between its minor versions: with headers of
// another one than LibTorch was built with, memory would be overwritten.
void check_headers() {
  const auto built = torch::cuda::nccl::version();
  const auto major = static_cast<int>(built >> 32U);
  const auto minor = static_cast<int>((built >> 16U) & 0xffffU);
  if (major != NCCL_MAJOR || minor != NCCL_MINOR) {
    const auto name = [](int a, int b) {
      return std::to_string(a) + "." + std::to_string(b);
    };
    throw Error(
        "[world] expected a sherd built with the headers of NCCL " +
            name(major, minor) + ", which LibTorch has, found those of " +
            name(NCCL_MAJOR, NCCL_MINOR),
        ErrorCode::kUnavailable);
  }
}
#endif

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    [[maybe_unused]] const c10::intrusive_ptr<c10d::Store>& store,
    [[maybe_unused]] int rank,
    [[maybe_unused]] int size,
    [[maybe_unused]] std::chrono::milliseconds deadline) {
#if SHERD_NCCL
  check_headers();
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = deadline;
  return c10::make_intrusive<NcclBackend>(store, rank, size, options);
#else
  throw Error(
      "[world] expected a sherd built with NCCL (a LibTorch with CUDA, and the "
      "CUDA and NCCL headers), found one built without",
      ErrorCode::kUnavailable);
#endif
}

}  // namespace sherd::compat
