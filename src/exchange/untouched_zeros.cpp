// SPDX-License-Identifier: Apache-2.0
#include "exchange/untouched_zeros.h"

#include <sys/mman.h>
#include <cerrno>
#include <cstring>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"

namespace sherd::exchange {

at::Tensor untouched_zeros(
    std::int64_t numel, const at::TensorOptions& options) {
  const auto bytes =
      static_cast<std::size_t>(numel) * options.dtype().itemsize();
  if (bytes == 0) {
    return at::zeros({0}, options);
  }
  void* memory = ::mmap(
      nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
      0);
  SHERD_CHECK_AS(
      kUnavailable, memory != MAP_FAILED, "[exchange] no memory for ", bytes,
      " bytes of gradients: ", std::strerror(errno));
  return at::from_blob(
      memory, {numel}, [bytes](void* at) { (void)::munmap(at, bytes); },
      options);
}

}  // namespace sherd::exchange
