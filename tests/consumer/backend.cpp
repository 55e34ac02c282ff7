// SPDX-License-Identifier: Apache-2.0
//
// Makes the shm backend in a group of one rank and reduces a tensor with it.
#include <cstdio>
#include <exception>
#include <vector>
#include <ATen/ATen.h>
#include <sherd/c10d_shm.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

int main() {
  try {
    const auto backend =
        sherd::make_shm_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1);
    std::vector<at::Tensor> tensors = {at::ones({4})};
    backend->allreduce(tensors)->wait();
    std::printf("backend %s\n", backend->getBackendName().c_str());
    return tensors[0].equal(at::ones({4})) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "backend: %s\n", error.what());
    return 1;
  }
}
