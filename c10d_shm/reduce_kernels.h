// SPDX-License-Identifier: Apache-2.0
//
// c10d's reduce operations on the elements of several ranks, for every dtype for which they make
// sense. bf16 and fp16 are reduced in fp32 and rounded once. Pure; runs on the calling thread only.
#pragma once

#include <string>
#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include "c10d_shm/communicator/collectives.h"

namespace sherd::c10d_shm {

// Throws if `op` has no meaning for `dtype`. AVG divides the sum by `ranks`, PREMUL_SUM multiplies
// what each rank has by the factor of the calling rank before summing; both are for floating-point
// numbers. Booleans: SUM and MAX are "or", PRODUCT and MIN "and". Integers wrap. Complex numbers:
// SUM, AVG and PREMUL_SUM.
ReduceKernel reduce_kernel_of(
    const c10d::ReduceOp& op, c10::ScalarType dtype, int ranks);

// What all ranks must agree on: "sum", or "premul_sum 0x1p-1", because the rank that sums
// multiplies by its own factor. Throws if PREMUL_SUM has none.
std::string reduce_op_text(const c10d::ReduceOp& op);

}  // namespace sherd::c10d_shm
