// SPDX-License-Identifier: Apache-2.0
//
// What c10d has only in some of the versions of PyTorch that the backend is built with. Most of it
// c10d announces itself, with C10D_BACKEND_HAS_RECONFIGURE, _WINDOW and _HOOKS (2.14); completion
// hooks (2.15) it does not.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>
#include "c10d_shm/hook_table.h"

#if defined(C10D_BACKEND_HAS_HOOKS) && \
    (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15)
#define SHERD_C10D_HAS_COMPLETION_HOOKS 1

namespace sherd::c10d_shm {
using CompletionHooks = HookTable<const c10d::CompletionHookArgs&>;
}  // namespace sherd::c10d_shm
#endif
