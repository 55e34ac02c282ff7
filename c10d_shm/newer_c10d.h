// SPDX-License-Identifier: Apache-2.0
//
// Features and names that c10d has only in some of the PyTorch versions with which the backend is
// built. c10d announces most of the features itself, with C10D_BACKEND_HAS_RECONFIGURE, _WINDOW and
// _HOOKS (2.14), but not completion hooks (2.15).
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/version.h>
#include "c10d_shm/hook_table.h"

#if defined(C10D_BACKEND_HAS_HOOKS) && \
    (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15)
#define SHERD_C10D_HAS_COMPLETION_HOOKS 1

#endif

namespace sherd::c10d_shm {

#ifdef SHERD_C10D_HAS_COMPLETION_HOOKS
using CompletionHooks = HookTable<const c10d::CompletionHookArgs&>;
#endif

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
using c10d::PreMulSumSupplement;
#else
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#endif

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12
inline constexpr c10d::OpType kCoalescedReduceScatter =
    c10d::OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#else
inline constexpr c10d::OpType kCoalescedReduceScatter = c10d::OpType::COALESCED;
#endif

}  // namespace sherd::c10d_shm
