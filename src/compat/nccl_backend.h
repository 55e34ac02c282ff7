// SPDX-License-Identifier: Apache-2.0
//
// Makes c10d's NCCL backend where this build of LibTorch and the machine's CUDA
// headers allow it. Thread rule: any thread.
#pragma once

#include <chrono>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace sherd::compat {

// False where make_nccl_backend() can only throw.
bool nccl_is_built();

// Collective. Throws Error where NCCL is not built.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds deadline);

}  // namespace sherd::compat
